"""A TCP proxy that breaks the connections through it, for tests of what a network does."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from engine.bus.zeromq import parse_address

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing drops what waits and sends a reset
PIECE = 64 * 1024


@dataclass(eq=False)
class Half:
    """One direction's end: where bytes come from, and what waits to go to the other end."""

    socket: socket.socket
    waiting: bytearray = field(default_factory=bytearray)
    other: Half = field(init=False)


class Proxy:
    """Passes connections on to `address`, a transport's; connect to ``proxy.address`` instead.

    `reset` breaks all connections at once; `block` also refuses new ones until `unblock`; `freeze`
    passes nothing on, and closes nothing, until `thaw`.  ``passed`` counts bytes, ``resets`` the
    connections that were broken.  All may be called from any thread; they return once it is done.
    """

    def __init__(self, address: str) -> None:
        target = parse_address(address)
        assert target.host is not None, "only TCP can be proxied"
        self._target = target.host, target.port
        self._listener = _bound(("127.0.0.1", 0))
        self._listener.listen()
        self._place = self._listener.getsockname()
        self.address = str(with_fields(target, path=None, host="127.0.0.1", port=self._place[1]))
        self.passed = 0
        self.resets = 0
        self._frozen = False
        self._halves: dict[socket.socket, Half] = {}
        self._commands: list[tuple[Callable[[], None], Future[None]]] = []
        self._selector = selectors.DefaultSelector()
        self._told, self._teller = socket.socketpair()
        self._open = True
        self._selector.register(self._told, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reset(self) -> None:
        """Break every connection that is open now; new ones are welcome."""
        self._do(self._reset)

    def block(self) -> None:
        """Break every connection, and let nobody connect: as if nobody listened."""
        self._do(self._block)

    def unblock(self) -> None:
        """Undo `block`."""
        self._do(self._unblock)

    def freeze(self) -> None:
        """Pass nothing on and tell nobody: as if a cable was pulled."""
        self._do(lambda: self._set_frozen(True))

    def thaw(self) -> None:
        """Undo `freeze`; what came meanwhile is passed on."""
        self._do(lambda: self._set_frozen(False))

    def close(self) -> None:
        """Break everything and end."""
        if self._thread.is_alive():
            self._do(self._stop)
            self._thread.join(30)
        for one in (self._told, self._teller):
            one.close()

    def _do(self, command: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._commands.append((command, done))
        self._teller.send(b"\0")
        done.result(30)

    def _run(self) -> None:
        while self._open:
            for key, events in self._selector.select():
                if key.fileobj is self._told:
                    self._told.recv(1)
                    command, done = self._commands.pop(0)
                    try:
                        command()
                    except OSError as error:
                        done.set_exception(error)
                    else:
                        done.set_result(None)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._move(key.fileobj, events)
        self._selector.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:
            return  # it was gone again
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far = socket.socket()
        try:
            far.connect(self._target)
        except OSError:
            far.close()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            near.close()
            return
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        halves = Half(near), Half(far)
        halves[0].other, halves[1].other = halves[1], halves[0]
        for half in halves:
            half.socket.setblocking(False)
            self._halves[half.socket] = half
            self._selector.register(half.socket, selectors.EVENT_READ)
            self._attend(half)

    def _move(self, which: object, events: int) -> None:
        half = self._halves.get(which)  # type: ignore[call-overload]
        if half is None or self._frozen:
            return
        try:
            if events & selectors.EVENT_READ:
                data = half.socket.recv(PIECE)
                if not data:
                    self._break(half, reset=False)
                    return
                half.other.waiting += data
            with contextlib.suppress(BlockingIOError):
                for one in (half, half.other):
                    sent = one.socket.send(one.waiting[:PIECE]) if one.waiting else 0
                    del one.waiting[:sent]
                    self.passed += sent
        except BlockingIOError:
            return
        except OSError:
            self._break(half, reset=True)
            return
        self._attend(half)
        self._attend(half.other)

    def _attend(self, half: Half) -> None:
        """Read only where what was read before is gone: a slow end slows down the other."""
        read = selectors.EVENT_READ if len(half.other.waiting) < PIECE else 0
        write = selectors.EVENT_WRITE if half.waiting else 0
        known = half.socket in self._selector.get_map()
        if self._frozen or not read | write:
            if known:
                self._selector.unregister(half.socket)
        elif known:
            self._selector.modify(half.socket, read | write)
        else:
            self._selector.register(half.socket, read | write)

    def _break(self, half: Half, *, reset: bool) -> None:
        for one in (half, half.other):
            self._halves.pop(one.socket, None)
            if one.socket in self._selector.get_map():
                self._selector.unregister(one.socket)
            if reset:
                one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            one.socket.close()

    def _reset(self) -> None:
        while self._halves:
            self.resets += 1
            self._break(next(iter(self._halves.values())), reset=True)

    def _block(self) -> None:
        # The port stays ours: bound, but nobody listens there.
        silent = _bound(self._place)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = silent
        self._reset()

    def _unblock(self) -> None:
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _set_frozen(self, frozen: bool) -> None:
        self._frozen = frozen
        for half in self._halves.values():
            self._attend(half)

    def _stop(self) -> None:
        self._open = False
        self._reset()
        if self._listener in self._selector.get_map():
            self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.unregister(self._told)


def _bound(place: tuple[str, int]) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(place)
    one.setblocking(False)
    return one
