"""A TCP proxy that breaks the connections through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import replace
from typing import Any

import zmq

from engine.bus.zeromq import ZeroMQ, parse_address

RESET = struct.pack("ii", 1, 0)  # closing drops what waits and tells the other end so


class Proxy:
    """Passes connections on to `address`, a transport's; others connect to ``proxy.address`` instead."""

    def __init__(self, address: str) -> None:
        target = parse_address(address)
        assert target.host is not None
        self._target = target.host, target.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.address = str(replace(target, path=None, host="127.0.0.1", port=port))
        self.resets = 0
        self._open: set[_Pair] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Break every connection that is open now; new ones are welcome."""
        with self._lock:
            broken, self._open = self._open, set()
        self.resets += len(broken)
        for pair in broken:
            pair.reset()

    def close(self) -> None:
        """Break everything, and let nobody in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            pair = _Pair(near, far)
            with self._lock:
                self._open.add(pair)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(pair, *ends), daemon=True).start()

    def _pass(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with self._lock:
            self._open.discard(pair)
        pair.leave()


class _Pair:
    """Both ends of a connection through a proxy, and the two threads that use them.

    The last of them closes both: whoever closed a socket that another thread is about to read would have
    that thread read from whatever gets its number next.
    """

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._ends = near, far
        self._users = 2
        self._lock = threading.Lock()
        for one in self._ends:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reset(self) -> None:
        """Break it at once."""
        with self._lock:
            if self._users:
                for one in self._ends:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                self._wake()

    def leave(self) -> None:
        """A thread is done with it, and the other shall be."""
        with self._lock:
            self._users -= 1
            if self._users:
                self._wake()
            else:
                for one in self._ends:
                    one.close()

    def _wake(self) -> None:
        for one in self._ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Breaker:
    """Makes proxies, for whoever asks at `place`, and breaks all their connections again and again.

    It lives in a process of its own: what it does must not take time from those it stands between.
    """

    def __init__(self, place: str) -> None:
        self._context = zmq.Context()
        asked = self._context.socket(zmq.REP)
        asked.linger = 0
        asked.bind(place)
        self._proxies: list[Proxy] = []
        self._over = threading.Event()
        self._thread = threading.Thread()
        threading.Thread(target=self._serve, args=(asked,), daemon=True).start()

    def begin(self, every: float) -> None:
        """Reset all connections each so many seconds from now on."""
        self._over.clear()
        self._thread = threading.Thread(target=self._run, args=(every,), daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Let them be; return how many were reset until now."""
        self._over.set()
        self._thread.join()
        return sum(proxy.resets for proxy in self._proxies)

    def close(self) -> None:
        """End everything."""
        self._over.set()
        for proxy in self._proxies:
            proxy.close()
        self._context.term()

    def _run(self, every: float) -> None:
        while not self._over.wait(every):
            for proxy in self._proxies:
                proxy.reset()

    def _serve(self, asked: Any) -> None:
        with asked, contextlib.suppress(zmq.ContextTerminated):
            while True:
                proxy = Proxy(asked.recv_string())
                self._proxies.append(proxy)
                asked.send_string(proxy.address)


class Proxied(ZeroMQ):
    """A transport whose address, as others are told it, is that of a proxy before it."""

    def __init__(self, breaker: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._breaker = breaker

    def start(self, me: str) -> str:
        """Start as a `ZeroMQ` does, with the proxy before it."""
        address = super().start(me)
        with zmq.Context() as context, context.socket(zmq.REQ) as asking:
            asking.connect(self._breaker)
            asking.send_string(address)
            return asking.recv_string()
