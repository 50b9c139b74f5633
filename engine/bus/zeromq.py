"""Transport between processes and hosts over ZeroMQ, the only file that imports it.

Each process has one inbox, a ROUTER, bound to a socket file in a private directory, to a TCP port, or
to both.  To each peer go two DEALERs, one for each lane, whose routing id is the lane's letter and the
sender's name.  Only the hub sends anything back through them: what a process must hear that the hub
cannot connect to, or has let go of.  Monitor sockets tell when they are connected.  A line is one more
DEALER, to which the inbox answers.

TCP is always encrypted, and admits only who holds the keys of the run.  Socket files are not: there,
the directory admits only its user.

ZeroMQ tells that a connection could not be made, but not why.  So after each attempt that failed a
plain socket asks once whether anything listens; that is how the death of a peer is told from a
connection that was lost.  If the other end hung up in the handshake, the same socket asks for ZeroMQ's
greeting: an end that greets with CURVE and then hangs up has refused the keys.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import re
import select
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from engine.bus import descriptors
from engine.bus.keys import RunKeys
from engine.bus.transport import (
    BULK,
    CONTROL,
    NOTHING_LISTENS,
    Arrival,
    Asked,
    Down,
    Frame,
    Line,
    Received,
    Up,
)
from engine.errors import PayloadTooLarge, UsageError

if TYPE_CHECKING:
    import zmq

    Socket: TypeAlias = zmq.Socket[bytes]

MAX_FRAME_BYTES = 64 << 20
"""Of one frame; who sends a larger one is disconnected."""

MAX_FRAMES = 64
"""Of one message; a message of more is dropped."""

_LARGE = 64 * 1024  # from here on, frames are handed over without a copy
_AT_ONCE = 256  # messages that one poll returns at most
_WAITING = (1000, 16)  # messages that may wait in each lane of a peer before `send` takes no more
# Messages of one connection that may wait in the inbox before the sender is held: more than an honest
# peer's lanes have under way.  libzmq aborts the process where a held sender goes away and left a heartbeat.
_INBOX_WAITING = 1 << 14
_LETTERS = (b"c", b"b", b"l")  # of the lanes and of lines, in routing ids
_LINE = 2
_MOST_ASKED_BYTES = 2 * _LARGE  # of a frame on a line
_ID = re.compile(r"[!-~]{1,128}")
_KNOWN_IDS = 4096
_MOST_SOCKETS = 16 << 10  # of libzmq: 6 for each of 1,024 peers, and 4 lines to each

_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 1000, 3000
_HANDSHAKE_MS = 2000
_RECONNECT_MS, _RECONNECT_MAX_MS = 20, 500

_NOBODY = {errno.ECONNREFUSED, errno.ENOENT}
_HUNG_UP = {errno.EPIPE, errno.ECONNRESET}
# The greeting of ZMTP 3.1: signature, version, mechanism, as-server, filler.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_DOWN, _STRANGE, _REFUSED, _DENIED = range(1, 5)  # what is worse is told after what is less
_WRONG_KEYS = "it refuses the keys of this process, which are those of another run"
_MAX_PATH = 107  # bytes of the path of a socket file
_MAX_ADDRESS = 1000
_DIRECTORY = "engine-bus-"
_DIRECTORIES = re.compile(r"engine-(bus-.*|[0-9a-f]{12})")
_STALE_SECONDS = 60.0
_LOCKED_SECONDS = 2.0  # after which a launcher has locked its own
_EVENT = struct.Struct("=HI")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a transport listens: a socket file, a TCP port, or both."""

    path: str | None = None
    host: str | None = None
    port: int = 0

    def __str__(self) -> str:
        parts = [] if self.path is None else [f"ipc://{quote(self.path)}"]
        if self.host is not None:
            host = f"[{self.host}]" if ":" in self.host else self.host
            parts.append(f"tcp://{host}:{self.port}")
        return " ".join(parts)


def parse_address(text: str) -> Address:
    """Read an address as `ZeroMQ.start` returns it, or ``tcp://host:port`` as people write it.

    Raises `UsageError` for anything else.
    """
    shown = repr(text if len(text) <= 120 else f"{text[:120]}...")
    if len(text) > _MAX_ADDRESS or not (text.isascii() and text.isprintable()):
        raise UsageError(f"{shown} is no address of a peer")
    path: str | None = None
    host: str | None = None
    port = 0
    for part in text.split():
        if part.startswith("ipc://") and path is None:
            path = unquote(part.removeprefix("ipc://"))
            size = len(path.encode("utf-8", "replace"))
            if not path.startswith("/") or not path.isprintable() or size > _MAX_PATH:
                raise UsageError(f"{part!r} names no socket file that could be")
        elif part.startswith("tcp://") and host is None:
            host, port = split_place(part.removeprefix("tcp://"))
            if not host or not port:
                raise UsageError(f"{part!r} lacks host or port; it looks like tcp://10.0.0.7:41233")
        else:
            raise UsageError(f"{shown} is no address of a peer; one looks like tcp://10.0.0.7:41233")
    if path is None and host is None:
        raise UsageError("the address of a peer is empty")
    return Address(path, host, port)


def check_place(place: str) -> None:
    """Raise `UsageError` unless `place`, ``host`` or ``host:port``, is one that others could connect to."""
    host, _ = split_place(place)
    if host in ("", "*", "0.0.0.0", "::"):
        raise UsageError(f"tcp={place!r} names no host that others could connect to; give its address")


def is_loopback(place: str) -> bool:
    """Return whether ``host`` or ``host:port`` can be reached from this host only."""
    host, _ = split_place(place)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def curve_pair() -> tuple[str, str]:
    """Return a new public and secret CURVE key, in Z85."""
    import zmq

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def sweep(directory: Path | None = None) -> int:
    """Remove the socket directories that killed processes of this user left; return how many.

    They are those of single processes and those of launchers, which hold what processes were told too.
    """
    count = 0
    for left in (directory or Path(tempfile.gettempdir())).glob("engine-*"):
        try:
            if not _DIRECTORIES.fullmatch(left.name) or not _is_left(left):
                continue
        except OSError:
            continue  # its owner removed it just now, or it is none that can be looked at
        shutil.rmtree(left, ignore_errors=True)
        count += 1
    return count


def _is_left(directory: Path) -> bool:
    """Whether the owner of a directory of this user is gone."""
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return False
    age, inside = time.time() - about.st_mtime, list(directory.iterdir())
    if directory.name.startswith(_DIRECTORY):
        return age >= _STALE_SECONDS and not any(map(_listens, inside))
    sockets = [path for path in inside if not (path.suffix == ".json" and path.is_file())]
    return age >= _LOCKED_SECONDS and not any(map(_listens, sockets)) and not _is_locked(directory)


def lock(directory: Path) -> int:
    """Keep a directory from being swept until the returned descriptor is closed, or this process ends."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_locked(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class ZeroMQ:
    """A transport between processes; see `engine.bus.transport.Transport`.

    ``ipc`` is the directory for the socket file, which is made where it does not exist; True makes a
    private one under the directory for temporary files, and False binds no socket file.  ``tcp`` is
    ``host`` or ``host:port`` of this host, as others are to reach it; it needs ``keys``.  If they reach
    it through a gateway, ``bind`` is the ``host:port`` of this host to which that passes connections on.

    ``dropped`` counts messages that were no messages of a bus, ``denied`` the connections of peers
    without the keys.
    """

    def __init__(
        self,
        *,
        ipc: Path | bool = True,
        tcp: str | None = None,
        bind: str | None = None,
        keys: RunKeys | None = None,
    ) -> None:
        if bind is not None:
            check_place(bind)
            if tcp is None or not split_place(tcp)[1] or not split_place(bind)[1]:
                raise UsageError(f"bind={bind!r} needs a port, and tcp='host:port' as others reach it")
        if ipc is False and tcp is None:
            raise UsageError("nobody could reach a transport with ipc=False and no tcp=")
        if tcp is not None:
            check_place(tcp)
            if keys is None:
                raise UsageError(f"tcp={tcp!r} needs keys=: on TCP, only who holds the run's keys is let in")
        self.me = ""
        self.dropped = 0
        self.denied = 0
        self._ipc, self._tcp, self._bind_at, self._keys = ipc, tcp, bind, keys
        self._made: Path | None = None  # the directory, if this transport made it
        self._path: Path | None = None
        self._links: dict[str, _Link] = {}
        self._arrivals: deque[Arrival] = deque()
        self._senders: dict[bytes, tuple[str, int] | None] = {}
        self._callers: set[str] = set()  # peers that called by a line
        self._numbers = 0
        self._untaken = False
        self._unread: _Link | None = None  # a link that may have something to read, which nothing tells
        self._closed = False
        self._wake_lock = threading.Lock()
        self._woken = False
        self._wake_in = self._wake_out = -1

    # --- the contract -----------------------------------------------------------------------

    def start(self, me: str) -> str:
        import zmq

        if self.me or self._closed:
            raise UsageError(f"this transport was started before, as {self.me!r}")
        if not _ID.fullmatch(me):
            raise UsageError(f"{me!r} cannot name a peer: at most 128 letters, digits and signs, no spaces")
        descriptors.raise_limit()
        if shortage := descriptors.shortage():
            raise UsageError(f"this process cannot be part of a run: it has {shortage}")
        self._zmq = zmq
        # As plain numbers: combining enumeration members takes longer than a system call.
        self._dontwait, self._more = int(zmq.DONTWAIT), int(zmq.SNDMORE) | int(zmq.DONTWAIT)
        self._events = int(zmq.EVENTS)
        self._in, self._out = int(zmq.POLLIN), int(zmq.POLLOUT)
        self._again = zmq.Again
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.blocky = False
        self._context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}  # by file descriptor
        self._inbox = self._context.socket(zmq.ROUTER)
        self._zap: Socket | None = None
        self.me = me
        try:
            self._wake_in, self._wake_out = os.pipe()
            self._watch(self._wake_in, self._drain_wakes)
            address = self._bind()
            self._watch(_fd(self._inbox), self._take)
        except BaseException:
            self.close(linger=0)
            raise
        return address

    def shortage(self, *, before: bool = False) -> str:
        coming = sum(2 for link in self._links.values() if link.sockets and not link.up)
        lines = max(0, len(self._links) - len(self._callers))  # each peer may begin to call this process
        return descriptors.shortage(before=before, promised=coming + lines)

    def check(self, address: str) -> None:
        self._check_keys(parse_address(address))

    def connect(self, peer: str, address: str, *, answered: bool = False) -> None:
        link = self._links.get(peer)
        if self._closed or (link is not None and link.address == address):
            return
        if link is not None:
            self.disconnect(peer)
        link = self._links[peer] = _Link(peer, address, answered)
        try:
            self._open(link)
        except (UsageError, self._zmq.ZMQError) as error:
            # An address may come from afar: whatever it says must not stop this thread.
            self._release(link, linger=0)
            self._tell_down(link, str(error), _REFUSED)

    def disconnect(self, peer: str) -> None:
        link = self._links.pop(peer, None)
        self._callers.discard(peer)
        if link is not None:
            self._release(link, linger=0)
            kept = (one for one in self._arrivals if isinstance(one, Received) or one.peer != peer)
            self._arrivals = deque(kept)

    def send(self, peer: str, lane: int, frames: Sequence[Frame]) -> bool:
        link = self._links.get(peer)
        if link is None or not link.sockets:
            return False
        if link.answered:
            self._unread = link
        if len(frames) == 1 and 0 < len(frames[0]) < _LARGE:
            try:
                link.sockets[lane].send(frames[0], self._dontwait)
            except self._again:
                pass
            else:
                return True
        sizes = [len(frame) for frame in frames]
        if not sizes or max(sizes) > MAX_FRAME_BYTES or len(sizes) > MAX_FRAMES:
            raise PayloadTooLarge(
                f"a message of {len(sizes)} frames and {sum(sizes)} bytes; one has 1 to {MAX_FRAMES} frames "
                f"of at most {MAX_FRAME_BYTES} bytes each"
            )
        out = link.sockets[lane]
        if self._try(out, frames, sizes):
            return True
        # What tells that there is room may not have been looked at yet.
        if self._has(out, self._out) and self._try(out, frames, sizes):
            return True
        if _fd(out) not in self._handlers:
            # It tells nothing when there is room, but `poll` returns.  (If it is watched already, it does.)
            self._watch(_fd(out), lambda: self._look_for_room(out))
        return False

    def line(self, peer: str, number: int, seconds: float) -> Line | None:
        link = self._links.get(peer)
        if link is None or not link.up or self._closed:
            return None
        zmq = self._zmq
        try:
            out = self._dealer(link, _LETTERS[_LINE] + f"{self.me}/{number}".encode())
            out.set(zmq.SNDHWM, 64)  # one is under way, but libzmq hears late that earlier ones were sent
            out.set(zmq.RCVTIMEO, round(seconds * 1000))
            out.connect(link.endpoint)
        except zmq.ZMQError:
            return None  # the link went just now, or there are too many sockets
        return _Line(out, self._dontwait, (zmq.Again, zmq.ContextTerminated))

    def reply(self, peer: str, frame: bytes) -> None:
        self.answer(_LETTERS[CONTROL] + peer.encode(), frame)

    def answer(self, line: bytes, frame: bytes) -> None:
        inbox = self._inbox
        try:
            inbox.send(line, self._more)
            inbox.send(frame, self._dontwait)
        except self._again:
            pass  # it reads nothing: it asks again by the lanes
        # A socket that sends learns of what came as well, and its descriptor tells of that no more.
        if self._has(inbox, self._in):
            self._untaken = True

    def poll(self, timeout: float) -> list[Arrival]:
        if self._closed:
            return []
        arrivals = self._arrivals
        if self._untaken:
            self._take()
        if self._unread is not None:
            self._take_back(self._unread)
        for fd, _ in self._epoll.poll(0 if arrivals or self._untaken else max(timeout, 0)):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
        if not arrivals:
            return []
        if len(arrivals) <= _AT_ONCE:
            taken = list(arrivals)
            arrivals.clear()
            return taken
        return [arrivals.popleft() for _ in range(_AT_ONCE)]

    def wake(self) -> None:
        if self._woken:
            return
        with self._wake_lock:
            if not self._closed and self._wake_out >= 0:
                self._woken = True
                os.write(self._wake_out, b"\0")

    def close(self, linger: float = 0.5) -> None:
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
        if not self.me:
            return
        for link in self._links.values():
            self._release(link, linger=max(0, round(linger * 1000)))
        self._links.clear()
        self._inbox.close(linger=0)
        if self._zap is not None:
            self._zap.close(linger=0)
        self._context.term()
        self._epoll.close()
        for fd in (self._wake_in, self._wake_out):
            if fd >= 0:
                os.close(fd)
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    # --- the inbox --------------------------------------------------------------------------

    def _bind(self) -> str:
        from zmq.utils import z85

        zmq, inbox, path, host, port = self._zmq, self._inbox, None, None, 0
        self._harden(inbox)
        inbox.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        inbox.set(zmq.RCVHWM, _INBOX_WAITING)
        inbox.set(zmq.SNDHWM, 64)  # answers on a line, which has one under way
        # Only who sends asks whether the other end is there: libzmq aborts the process where an inbox asks
        # somebody who has gone while the inbox was full.
        inbox.set(zmq.HEARTBEAT_IVL, 0)
        inbox.set(zmq.ROUTER_HANDOVER, 1)  # a peer that connects anew may be faster than its old end
        # Options hold for what is bound later: the socket file first, without keys.
        if self._ipc is not False:
            path = str(self._socket_path())
            self._bind_to(f"ipc://{path}")
        if self._tcp is not None and self._keys is not None:
            self._zap = self._context.socket(zmq.REP)
            self._zap.bind("inproc://zeromq.zap.01")
            self._watch(_fd(self._zap), self._admit)
            self._admitted = z85.decode(self._keys.client_public)
            inbox.set(zmq.CURVE_SERVER, 1)
            inbox.set(zmq.CURVE_SECRETKEY, self._keys.server_secret.encode())
            inbox.set(zmq.ZAP_DOMAIN, b"run")
            at, port = split_place(self._bind_at or self._tcp)
            at = host = _numeric(at)
            inbox.set(zmq.IPV6, int(":" in at))
            self._bind_to(f"tcp://{f'[{at}]' if ':' in at else at}:{port or '*'}")
            if self._bind_at is not None:
                host, port = split_place(self._tcp)
            else:
                _, port = split_place(inbox.get_string(zmq.LAST_ENDPOINT).removeprefix("tcp://"))
        return str(Address(path, host, port))

    def _bind_to(self, endpoint: str) -> None:
        try:
            self._inbox.bind(endpoint)
        except self._zmq.ZMQError as error:
            raise UsageError(f"cannot listen at {endpoint}: {error.strerror}") from error

    def _socket_path(self) -> Path:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", self.me)[-64:] + ".sock"
        if isinstance(self._ipc, Path):
            directory = self._ipc.absolute()
            try:
                directory.mkdir(mode=0o700)
                self._made = directory
            except FileExistsError:
                about = directory.stat()
                if not stat.S_ISDIR(about.st_mode) or not _private(about):
                    raise UsageError(
                        f"{directory} must be a directory that is this user's and closed to others "
                        "(mode 0700) to hold sockets"
                    ) from None
            except OSError as error:
                raise UsageError(f"cannot make {directory} for sockets: {error.strerror}") from error
            self._path = directory / name
            if len(os.fsencode(self._path)) <= _MAX_PATH:
                return self._path
            self._remove_made()  # too long for a socket: a short one elsewhere
        sweep()
        for parent in (tempfile.gettempdir(), "/tmp"):
            self._made = Path(tempfile.mkdtemp(prefix=_DIRECTORY, dir=parent))
            self._path = self._made / name
            if len(os.fsencode(self._path)) <= _MAX_PATH:
                return self._path
            self._remove_made()
        raise UsageError(f"no directory with a path short enough for the socket {name!r}; set TMPDIR")

    def _remove_made(self) -> None:
        if self._made is not None:
            self._made.rmdir()
        self._made = self._path = None

    def _admit(self) -> None:
        """Answer libzmq whether somebody who connects by TCP is let in; it waits for that."""
        zap = self._zap
        while zap is not None:
            try:
                request = zap.recv_multipart(self._dontwait)
            except self._again:
                return
            known = request[5:] == [b"CURVE", self._admitted]
            status = [b"200", b"OK", b"peer"] if known else [b"400", b"not a key of this run", b""]
            self.denied += not known
            zap.send_multipart([b"1.0", request[1], *status, b""], self._dontwait)

    def _take(self) -> None:
        """Take messages from the inbox, with as few calls as can be: every call counts here.

        The file descriptor of a ZeroMQ socket tells of news only, so nothing may be left without a note:
        `_untaken` is False only where the socket itself has said that there is nothing more.
        """
        inbox, dontwait = self._inbox, self._dontwait
        recv, senders = inbox.recv, self._senders
        self._untaken = True
        for count in range(_AT_ONCE):
            if count == 1 and not self._has(inbox, self._in):
                self._untaken = False  # the usual case, and cheaper to learn so than by an exception
                return
            try:
                routing_id = recv(dontwait)
            except self._again:
                self._untaken = False
                return
            try:
                sender = senders[routing_id]
            except KeyError:
                sender = self._sender(routing_id)
            part = recv(dontwait, copy=False)
            frames = [_frame(part)]
            while part.more:
                part = recv(dontwait, copy=False)
                if len(frames) < MAX_FRAMES:
                    frames.append(_frame(part))
                else:
                    sender = None
            if sender is None:
                self.dropped += 1
            elif sender[1] != _LINE:
                self._arrivals.append(Received(sender[0], sender[1], frames))
            elif len(frames) == 1 and len(frames[0]) <= _MOST_ASKED_BYTES:
                self._arrivals.append(Asked(sender[0], routing_id, frames[0]))
            else:
                self.dropped += 1

    def _take_back(self, link: _Link) -> None:
        """Take what a peer sent back with `reply`.

        A socket that sends learns of what came too, and its descriptor tells of that no more: after each
        `send` the next `poll` looks.
        """
        if self._unread is link:
            self._unread = None
        while link.sockets and self._has(link.sockets[CONTROL], self._in):
            frames = link.sockets[CONTROL].recv_multipart(self._dontwait)
            if len(frames) == 1:
                self._arrivals.append(Received(link.peer, CONTROL, frames))
            else:
                self.dropped += 1

    def _sender(self, routing_id: bytes) -> tuple[str, int] | None:
        """Return the name and the lane of whoever uses this routing id; None for one of no peer."""
        name = routing_id[1:].decode("ascii", "replace")
        if routing_id[:1] == _LETTERS[_LINE]:
            name = name.rpartition("/")[0]
            if name in self._links:
                self._callers.add(name)
        known = routing_id[:1] in _LETTERS and _ID.fullmatch(name) is not None
        sender = (name, _LETTERS.index(routing_id[:1])) if known else None
        if len(self._senders) >= _KNOWN_IDS:
            self._senders.clear()
        self._senders[routing_id] = sender
        return sender

    # --- links ------------------------------------------------------------------------------

    def _open(self, link: _Link) -> None:
        zmq = self._zmq
        address = parse_address(link.address)
        if address.path is not None and _usable(address.path):
            endpoint = f"ipc://{address.path}"
            link.target = address.path
        elif address.host is not None:
            self._check_keys(address)
            endpoint = str(replace(address, path=None))
            link.target = address.host, address.port
        else:
            raise UsageError(f"there is no socket {address.path} of this user on this host")
        link.endpoint = endpoint
        for lane in (CONTROL, BULK):
            out = self._dealer(link, _LETTERS[lane] + self.me.encode())
            link.sockets.append(out)
            out.set(zmq.SNDHWM, _WAITING[lane])
            self._monitor(link, lane, out)
        if link.answered:
            self._watch(_fd(link.sockets[CONTROL]), lambda: self._take_back(link))
        for out in link.sockets:
            out.connect(endpoint)

    def _check_keys(self, address: Address) -> None:
        if address.path is None and self._keys is None:
            raise UsageError(f"{address} is reached by TCP, which needs the keys of the run")

    def _dealer(self, link: _Link, routing_id: bytes) -> Socket:
        """Return a socket for the other end of a link, which is not connected yet."""
        zmq = self._zmq
        out = self._context.socket(zmq.DEALER)
        self._harden(out)
        out.set(zmq.ROUTING_ID, routing_id)
        out.set(zmq.IMMEDIATE, 1)
        out.set(zmq.RCVHWM, 64)  # only answers come this way
        out.set(zmq.MAXMSGSIZE, _MOST_ASKED_BYTES)
        out.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        out.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        if not isinstance(link.target, str) and self._keys is not None:
            out.set(zmq.IPV6, int(":" in link.target[0]))
            out.set(zmq.CURVE_SERVERKEY, self._keys.server_public.encode())
            out.set(zmq.CURVE_PUBLICKEY, self._keys.client_public.encode())
            out.set(zmq.CURVE_SECRETKEY, self._keys.client_secret.encode())
        return out

    def _monitor(self, link: _Link, lane: int, out: Socket) -> None:
        zmq = self._zmq
        events = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CONNECT_RETRIED
        )
        self._numbers += 1
        endpoint = f"inproc://monitor-{self._numbers}"
        out.monitor(endpoint, events)
        monitor = self._context.socket(zmq.PAIR)
        monitor.set(zmq.RCVHWM, 0)  # libzmq's own thread would wait for room
        monitor.set(zmq.LINGER, 0)
        monitor.connect(endpoint)
        link.monitors.append(monitor)
        self._watch(_fd(monitor), lambda: self._observe(link, lane, monitor))
        self._observe(link, lane, monitor)  # only who has looked in vain is told when something comes

    def _observe(self, link: _Link, lane: int, monitor: Socket) -> None:
        zmq = self._zmq
        while True:
            try:
                event, value = _EVENT.unpack(monitor.recv_multipart(self._dontwait)[0])
            except self._again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.lanes_up[lane] = True
                if all(link.lanes_up):
                    self._stop_asking(link)
                    link.up, link.told, link.hung_up = True, 0, False
                    self._arrivals.append(Up(link.peer))
            elif event == zmq.EVENT_CONNECT_RETRIED:
                if not link.up:
                    self._ask(link)
            else:
                link.lanes_up[lane] = False
                how_bad = _DOWN
                if event == zmq.EVENT_DISCONNECTED:
                    cause = "the connection broke" if link.up else "the connection broke in the handshake"
                elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    cause, how_bad = _WRONG_KEYS, _DENIED
                elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value == errno.EAGAIN:
                    cause = "it accepts connections and does not speak"
                else:
                    hung_up = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value in _HUNG_UP
                    link.hung_up = link.hung_up or hung_up
                    cause = "the handshake failed; are the keys those of its run?"
                link.up = False
                self._ask(link)
                self._tell_down(link, cause, how_bad)

    def _tell_down(self, link: _Link, cause: str, how_bad: int = _DOWN) -> None:
        """Tell that a link is down, and again if more is known of it; until it is up again."""
        if how_bad > link.told:
            link.told = how_bad
            self._arrivals.append(Down(link.peer, cause, how_bad == _REFUSED, how_bad == _DENIED))

    def _ask(self, link: _Link) -> None:
        """Find out with a socket of our own whether anything listens at the other end."""
        if link.asking is not None or link.told >= _REFUSED or link.nameless:
            return
        try:
            family, target = _plain(link.target)
            asking = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            link.nameless = True  # looking up a name may take seconds: not again and again
            self._tell_down(link, str(error.strerror or error))
            return
        asking.setblocking(False)
        result = asking.connect_ex(target)
        if result == errno.EINPROGRESS:
            link.asking = asking
            self._watch(asking.fileno(), lambda: self._asked(link), select.EPOLLOUT)
        else:
            asking.close()
            self._learn(link, result)

    def _asked(self, link: _Link) -> None:
        asking = link.asking
        if asking is None:
            return
        result = asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result == 0 and link.hung_up and link.told < _STRANGE:
            self._unwatch(asking.fileno())
            link.greeting = b""
            self._watch(asking.fileno(), lambda: self._hear(link))
            with contextlib.suppress(OSError):  # then there is nothing to hear, which `_hear` finds
                asking.send(_GREETING)
        else:
            self._stop_asking(link)
            self._learn(link, result)

    def _hear(self, link: _Link) -> None:
        """Read the greeting of an end that hung up in the handshake: does it speak ZeroMQ, and by keys?"""
        asking = link.asking
        if asking is None:
            return
        try:
            heard = asking.recv(len(_GREETING) - len(link.greeting))
        except OSError:
            heard = b""
        link.greeting += heard
        if heard and len(link.greeting) < len(_GREETING):
            return
        self._stop_asking(link)
        greeting = link.greeting
        if (
            greeting[:1] == b"\xff"
            and greeting[9:10] == b"\x7f"
            and greeting[12:32].rstrip(b"\0") == b"CURVE"
        ):
            self._tell_down(link, _WRONG_KEYS, _DENIED)
        else:
            self._tell_down(link, "what listens there is no run of engine", _STRANGE)

    def _learn(self, link: _Link, result: int) -> None:
        if result in _NOBODY:
            self._tell_down(link, NOTHING_LISTENS, _REFUSED)
        elif result not in (0, errno.EAGAIN):
            self._tell_down(link, os.strerror(result))

    def _stop_asking(self, link: _Link) -> None:
        if link.asking is not None:
            self._unwatch(link.asking.fileno())
            link.asking.close()
            link.asking = None

    def _release(self, link: _Link, *, linger: int) -> None:
        self._stop_asking(link)
        # In this order: libzmq waits for room in a monitor that nobody reads, and an open one holds up the
        # end of the context.
        for out in link.sockets:
            out.disable_monitor()
        for monitor in link.monitors:
            self._unwatch(_fd(monitor))
            monitor.close(linger=0)
        for out in link.sockets:
            if _fd(out) in self._handlers:
                self._unwatch(_fd(out))
            out.close(linger=linger)
        link.sockets.clear()
        link.monitors.clear()

    def _try(self, out: Socket, frames: Sequence[Frame], sizes: list[int]) -> bool:
        last = len(sizes) - 1
        at = 0
        try:
            for at, frame in enumerate(frames):
                out.send(frame, self._dontwait if at == last else self._more, copy=sizes[at] < _LARGE)
        except self._again:
            if 0 < at < last:
                out.send(b"", self._dontwait)  # the connection broke halfway: end what is dropped there
            return False
        return True

    def _has(self, one: Socket, event: int) -> bool:
        return bool(int(one.get(self._events)) & event)

    def _look_for_room(self, out: Socket) -> None:
        if self._has(out, self._out):
            self._unwatch(_fd(out))

    # --- both -------------------------------------------------------------------------------

    def _harden(self, one: Socket) -> None:
        zmq = self._zmq
        one.set(zmq.LINGER, 0)
        one.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        one.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        one.set(zmq.HEARTBEAT_TTL, _HEARTBEAT_TIMEOUT_MS)
        one.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        one.set(zmq.TCP_KEEPALIVE, 1)

    def _watch(self, fd: int, handler: Callable[[], None], events: int = select.EPOLLIN) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def _unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def _drain_wakes(self) -> None:
        os.read(self._wake_in, 4096)
        # After reading, not before: a byte that is read with the flag set again would be lost.
        self._woken = False


class _Line:
    """A line over a socket of its own; see `engine.bus.transport.Line`."""

    def __init__(self, socket: Socket, dontwait: int, failed: tuple[type[Exception], ...]) -> None:
        self._socket, self._dontwait, self._failed = socket, dontwait, failed

    def send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, self._dontwait)
        except self._failed:
            return False
        return True

    def receive(self) -> Frame | None:
        try:
            return self._socket.recv()
        except self._failed:
            return None

    def close(self) -> None:
        self._socket.close(linger=0)


@dataclass(slots=True, eq=False)
class _Link:
    peer: str
    address: str
    answered: bool = False
    target: str | tuple[str, int] = ""
    endpoint: str = ""
    sockets: list[Socket] = field(default_factory=list)
    monitors: list[Socket] = field(default_factory=list)
    lanes_up: list[bool] = field(default_factory=lambda: [False, False])
    up: bool = False
    told: int = 0  # how bad it is, as far as it was told
    hung_up: bool = False  # whether the other end ever did in the handshake
    nameless: bool = False
    asking: socket.socket | None = None
    greeting: bytes = b""


def split_place(place: str) -> tuple[str, int]:
    """Split ``host``, ``host:port`` or ``[host]:port``; port 0 where there is none."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\[\]:\s/#]*))(?::(\d{1,5}))?", place)
    if found is None or int(found[3] or 0) > 65535:
        raise UsageError(f"{place!r} is no host:port")
    return found[1] or found[2] or "", int(found[3] or 0)


def _plain(target: str | tuple[str, int]) -> tuple[int, Any]:
    """Return the family and the address that a plain socket takes; raises `OSError` for unknown hosts."""
    if isinstance(target, str):
        return socket.AF_UNIX, target
    family, *_, address = socket.getaddrinfo(*target, type=socket.SOCK_STREAM)[0]
    return family, address


def _numeric(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"cannot listen at {host!r}: {error.strerror}") from error


def _private(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid() and not about.st_mode & 0o077


def _fd(one: Socket) -> int:
    return int(one.fd)


def _frame(frame: zmq.Frame) -> Frame:
    return frame.bytes if len(frame) < _LARGE else frame.buffer


def _usable(path: str) -> bool:
    """Whether a socket file is on this host, this user's own, in a directory closed to others."""
    try:
        about = os.stat(path, follow_symlinks=False)
        return stat.S_ISSOCK(about.st_mode) and _private(os.stat(os.path.dirname(path)))
    except (OSError, ValueError):
        return False


def _listens(path: Path) -> bool:
    if not path.is_socket():
        return True  # nothing of ours: leave it
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        return asking.connect_ex(str(path)) not in _NOBODY
