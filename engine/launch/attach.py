"""Reach a run that is going on, from another shell or machine: to look, to stop it, or to join in."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine.bus.bus import Bus
from engine.bus.keys import RunKeys, load_keys
from engine.bus.names import OBSERVER
from engine.bus.transport import Transport
from engine.errors import UsageError
from engine.launch.backend import Order
from engine.launch.card import KEYS, is_here, read_card
from engine.launch.start import run_id
from engine.launch.worker import Stopping, attend
from engine.runs.folder import Run


@dataclass(frozen=True)
class Whereabouts:
    """Where a run is to be reached."""

    run: str
    address: str
    keys: RunKeys | None = None
    listen: str | None = None
    """``HOST[:PORT]`` of this machine at which the members of the run reach it; None: found out."""

    def transport(self) -> Transport:
        """Return a transport by which its members can be reached, and reach this process."""
        from engine.bus.zeromq import ZeroMQ

        if self.keys is None:
            return ZeroMQ(ipc=True)
        own = _own_host(self.address)
        if self.listen is None:
            return ZeroMQ(ipc=False, tcp=own, keys=self.keys)
        return ZeroMQ(ipc=False, tcp=self.listen, bind=_bound(self.listen, own), keys=self.keys)


def find(where: str, key_file: Path | None = None, listen: str | None = None) -> Whereabouts:
    """Return the place of ``tcp://host:port``, which takes the run's key file, or of a run of this machine.

    With ``tcp://...``, this process is to be reached at `listen`.  Raises UsageError for a run that is over,
    is in one process, or is elsewhere.
    """
    if "://" in where:
        if key_file is None:
            raise UsageError(
                f"{where} admits only who holds the run's keys: give --key-file, "
                f"a copy of {KEYS} in the run's folder"
            )
        keys = load_keys(key_file)
        return Whereabouts(run_id(keys), where, keys, listen)
    if listen is not None:
        raise UsageError(f"--listen goes with tcp://..., and {where} is a run of this machine")
    if key_file is not None:
        raise UsageError(f"--key-file goes with tcp://..., and {where} is a run of this machine")
    run = Run.open(where)
    card = read_card(run)
    if card is None:
        raise UsageError(f"{run.path} runs in one process; `engine launch` makes runs that one can join")
    if card.address is None or run.state != "running":
        raise UsageError(f"{run.path} is over: {run.state}")
    if not is_here(card):
        raise UsageError(f"{run.path} runs on {card.host}; reach it by tcp://... and --key-file")
    return Whereabouts(card.run, card.address)


@contextlib.contextmanager
def observing(place: Whereabouts, *, timeout: float = 10.0) -> Iterator[Bus]:
    """Yield a bus in the run of `place`, of one who only asks and tells."""
    from engine.bus.bus import join

    bus = join(place.transport(), at=place.address, run=place.run, role=OBSERVER, timeout=timeout)
    try:
        yield bus
    finally:
        bus.close()


def work_for(place: Whereabouts, role: str, *, joined: Callable[[str], None] | None = None) -> int:
    """Join the run in a role and work until it is over, or until a signal; return the exit code.

    That is 0 when the run is over, and 128 + its number when Ctrl-C, SIGTERM or SIGHUP came before.

    `joined` is told the name under which it is known there.  Raises what ended the work, which the
    launcher is told as well.
    """
    stopping = Stopping()
    order = Order(run=place.run, address=place.address, role=role)
    errors: list[BaseException] = []
    with stopping.signals():
        code = attend(order, place.transport(), stopping=stopping, joined=joined, failed=errors.append)
    if errors:
        raise errors[0]
    return code


def _bound(listen: str, own: str) -> str | None:
    """Return where to bind if `listen` is no address of this machine; None if it is, and is bound itself.

    The gateway whose address it is passes connections on to the same port of this machine.
    """
    from engine.bus.zeromq import split_place

    host, port = split_place(listen)
    try:
        family, *_, target = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.bind(target)
    except socket.gaierror as error:
        raise UsageError(f"--listen {listen}: no machine is named {host!r}: {error.strerror}") from None
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or not port:
            hint = "; for a gateway's address give the port that it passes on" if not port else ""
            raise UsageError(f"--listen {listen}: {error.strerror}{hint}") from None
        return f"{own}:{port}"
    return None


def _own_host(address: str) -> str:
    """The address of this machine as the one at `address` sees it; nothing is sent to find out."""
    there = urlsplit(address)
    try:
        port = there.port
    except ValueError:  # no number, or one beyond 65535
        port = None
    if there.scheme != "tcp" or there.hostname is None or not port:
        raise UsageError(f"{address!r} is no place of a run; it looks like tcp://10.0.0.7:41233")
    try:
        family, *_, target = socket.getaddrinfo(there.hostname, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            host = str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(f"{there.hostname} cannot be reached: {error}") from None
    return f"[{host}]" if ":" in host else host
