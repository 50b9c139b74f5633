"""Where a run is to be found by those who come from elsewhere."""

from __future__ import annotations

import pytest

from engine.bus.keys import generate_keys
from engine.errors import UsageError
from engine.launch.attach import Whereabouts


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
