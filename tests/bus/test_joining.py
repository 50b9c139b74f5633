"""What a process that wants to join hears: of an address, of keys, of a hub that cannot reach it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.bus import links, network
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.keys import RunKeys, generate_keys
from engine.bus.memory import Network
from engine.bus.zeromq import ZeroMQ
from engine.errors import DeadlineExceeded, UsageError

KEYS, OTHERS = generate_keys(), generate_keys()
LONG = 60.0

pytestmark = pytest.mark.timeout(120)


def over_tcp(keys: RunKeys = KEYS, place: str = "127.0.0.1", **settings: Any) -> ZeroMQ:
    return ZeroMQ(ipc=False, tcp=place, keys=keys, **settings)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def eventually(ready: Any, what: str = "it") -> Any:
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def hosted(stack: ExitStack, transport: Any, **settings: Any) -> Bus:
    hub = host(transport, run="r", **settings)
    stack.callback(hub.close, linger=0.2)
    return hub


@pytest.mark.parametrize(
    "keys",
    [
        OTHERS,
        replace(KEYS, client_public=OTHERS.client_public, client_secret=OTHERS.client_secret),
        replace(KEYS, server_public=OTHERS.server_public, server_secret=OTHERS.server_secret),
    ],
    ids=["both", "client", "server"],
)
def test_keys_of_another_run_are_told_at_once(stack: ExitStack, keys: RunKeys) -> None:
    hub = hosted(stack, over_tcp())
    before = time.monotonic()
    with pytest.raises(UsageError, match="refuses the keys of this process") as caught:
        join(over_tcp(keys), at=hub.address, run="r", role="collector", timeout=LONG)
    assert time.monotonic() - before < 10.0  # far from the deadline, also on a busy machine
    for key in (KEYS.server_public, OTHERS.server_public, KEYS.client_public):
        assert key not in str(caught.value)
    assert hub.peers() == []


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == network.__name__]


def test_a_closed_port_is_told_within_two_seconds_and_tried_again(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    place = f"127.0.0.1:{free_port()}"
    joined: list[Bus] = []

    def work() -> None:
        joined.append(join(over_tcp(), at=f"tcp://{place}", run="r", role="collector", timeout=LONG))

    worker = threading.Thread(target=work)
    before = time.monotonic()
    worker.start()
    line = eventually(lambda: said(caplog))[0]
    assert f"nothing listens at tcp://{place}" in line
    assert time.monotonic() - before < 2.0
    hosted(stack, over_tcp(place=place))
    worker.join(LONG)
    assert [bus.peer for bus in joined] == ["collector_0"]
    joined[0].close()


def test_the_line_is_repeated(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.TOLD_AGAIN_SECONDS == 10.0
    monkeypatch.setattr(network, "TOLD_AGAIN_SECONDS", 0.2)
    at = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(DeadlineExceeded, match=rf"no hub answered at {at} within 1 s: nothing listens at"):
        join(over_tcp(), at=at, run="r", role="collector", timeout=1.0)
    assert len(said(caplog)) >= 3


@pytest.mark.parametrize("full", [False, True], ids=["silent", "full"])
def test_a_host_without_an_answer_is_told(caplog: pytest.LogCaptureFixture, full: bool) -> None:
    """A listener that never speaks; with a full queue it lets no connection come about, as a filter does."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0 if full else 8)
        for _ in range(3 if full else 0):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        at = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match=f"no answer from {at} so far"):
            join(over_tcp(), at=at, run="r", role="collector", timeout=1.5)
    assert "filtered, down, or not started yet" in said(caplog)[0]


def test_what_is_no_run_of_engine_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    one, _ = listener.accept()
                except OSError:
                    return
                one.close()

        threading.Thread(target=hang_up, daemon=True).start()
        at = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match="what listens there is no run of engine"):
            join(over_tcp(), at=at, run="r", role="collector", timeout=2.0)
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("refused", [True, False], ids=["closed", "filtered"])
def test_a_process_that_the_hub_cannot_reach_is_told_what_is_missing(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    monkeypatch.setattr(links, "HUB_SECONDS", 0.5)
    hub = hosted(stack, over_tcp(), roles=("collector",))
    watched: list[str] = []
    hub.watch(lambda what, peer, cause: watched.append(what))
    behind = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # connects, and never speaks
    port = free_port() if refused else behind.getsockname()[1]
    with pytest.raises(UsageError, match=r"cannot be reached at tcp://127\.0\.0\.1:.*--listen HOST\[:PORT\]"):
        join(
            over_tcp(place=f"127.0.0.1:{port}", bind=f"127.0.0.1:{free_port()}"),
            at=hub.address,
            run="r",
            role="collector",
            timeout=LONG,
        )
    (line,) = said(caplog)[-1:]
    assert line.startswith("collector, from ")
    assert "was not let in: it cannot be reached at" in line
    assert (watched, hub.peers(), hub.stats()["lost"]) == ([], [], {})
    good = join(over_tcp(place="127.0.0.2"), at=hub.address, run="r", role="collector", timeout=LONG)
    assert good.address.startswith("tcp://127.0.0.2:")
    good.close()


def test_a_process_behind_a_gateway_binds_elsewhere_than_it_is_reached() -> None:
    port = free_port()
    transport = over_tcp(place=f"gateway.example:{port}", bind=f"127.0.0.1:{port}")
    assert transport.start("collector_0:1") == f"tcp://gateway.example:{port}"
    with socket.create_connection(("127.0.0.1", port), timeout=LONG):
        pass
    transport.close()
    with pytest.raises(UsageError, match="needs a port"):
        over_tcp(place="gateway.example", bind=f"127.0.0.1:{port}")


@pytest.mark.parametrize("at", ["hello", "", "http://127.0.0.1:80", "tcp://127.0.0.1", None, 3])
def test_what_is_no_address_is_refused_at_once(at: Any) -> None:
    for transport in (over_tcp(), ZeroMQ(), Network().transport()):
        with pytest.raises(UsageError, match=r"address|host"):
            join(transport, at=at, run="r", role="collector", timeout=LONG)


def test_tcp_without_keys_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="needs the keys of the run"):
        join(ZeroMQ(), at="tcp://127.0.0.1:9", run="r", role="collector", timeout=LONG)


def test_a_socket_file_that_comes_later_is_found(
    stack: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = hosted(stack, ZeroMQ(ipc=tmp_path / "s"))
    path = first.address.removeprefix("ipc://")
    later = tmp_path / "later.sock"
    joined: list[Bus] = []
    worker = threading.Thread(
        target=lambda: joined.append(
            join(ZeroMQ(ipc=tmp_path / "s"), at=f"ipc://{later}", run="r", role="collector", timeout=LONG)
        )
    )
    worker.start()
    assert "nothing listens at" in eventually(lambda: said(caplog))[0]
    os.chmod(tmp_path, 0o700)
    os.rename(path, later)
    worker.join(LONG)
    assert [bus.peer for bus in joined] == ["collector_0"]
    joined[0].close()


def test_what_takes_long_is_prepared_between_reaching_the_hub_and_joining_it(stack: ExitStack) -> None:
    hub = hosted(stack, over_tcp())
    there: list[int] = []
    bus = join(
        over_tcp(),
        at=hub.address,
        run="r",
        role="collector",
        timeout=LONG,
        prepare=lambda: there.append(len(hub.peers())),
    )
    assert (there, bus.peer) == ([0], "collector_0")
    bus.close()
    with pytest.raises(ModuleNotFoundError):
        join(over_tcp(), at=hub.address, run="r", role="collector", prepare=lambda: __import__("no_such"))
    eventually(lambda: hub.peers() == [])
    assert threading.active_count() < 10


def test_a_refusal_needs_no_connection_to_the_newcomer(stack: ExitStack, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    hub = hosted(stack, ZeroMQ(), roles=("collector",))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(UsageError, match="no role 'actor'"):
            join(ZeroMQ(), at=hub.address, run="r", role="actor", timeout=LONG)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors are closed")
    assert sum(line.startswith("actor, from ") for line in said(caplog)) == 5
