"""Where a run is to be found by those who come from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.bus.keys import generate_keys
from engine.errors import UsageError
from engine.launch.attach import Whereabouts, find


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.7",
        "tcp://10.0.0.7:0",
        "tcp://10.0.0.7:99999",
        "tcp://10.0.0.7:x",
        "tcp://:41233",
        "ipc://x",
    ],
)
def test_a_place_without_host_or_port_is_refused_and_shown_how_it_is_written(address: str) -> None:
    with pytest.raises(UsageError, match=r"is no place of a run; it looks like tcp://10\.0\.0\.7:41233"):
        Whereabouts("r", address, generate_keys()).transport()


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.4", r"tcp://127\.0\.0\.4:\d+"),
        ("192.0.2.7:41233", r"tcp://192\.0\.2\.7:41233"),  # a gateway's; nothing is sent there
    ],
)
def test_a_worker_is_reached_where_it_was_told_to_listen(tmp_path: Path, listen: str, address: str) -> None:
    generate_keys().save(tmp_path / "run.key")
    transport = find("tcp://127.0.0.1:9", tmp_path / "run.key", listen).transport()
    assert re.fullmatch(address, transport.start("collector:1"))
    transport.close()
    with pytest.raises(UsageError, match="--listen goes with tcp"):
        find("latest", None, listen)
