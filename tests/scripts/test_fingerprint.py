"""What the fingerprint covers, and that it sees a difference."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "fingerprint"))


def test_every_shipped_configuration_stands_in_every_mode_it_has(script: dict[str, Any]) -> None:
    names = {name for name, _ in script["cases"](SCRIPTS.parent, [])}
    files = (SCRIPTS.parent / "configs").glob("*/*.yaml")
    for name in (f"{file.parent.name}/{file.stem}" for file in files):
        modes = ["in order"] if name.startswith("league/") else ["in order", "overlapped", "lockstep"]
        assert {f"{name}, {mode}" for mode in modes} <= names


def test_metrics_that_measure_time_do_not_count(script: dict[str, Any]) -> None:
    keys = ["time", "time/sps", "exchange/queue_seconds", "env_step", "timely", "exchange/behind_sending"]
    assert [key for key in keys if script["steady"](key)] == ["env_step", "timely", "exchange/behind_sending"]


def test_added_keys_do_not_count_and_a_changed_bit_does(script: dict[str, Any]) -> None:
    digest = script["digest_of_rows"]
    rows = [{"env_step": 1, "train/loss": 0.1}, {"env_step": 2}]
    keys = ["env_step", "train/loss"]
    assert digest([{**rows[0], "new": 3}, rows[1]], keys) == digest(rows, keys)
    assert digest([{**rows[0], "train/loss": np.nextafter(0.1, 1)}, rows[1]], keys) != digest(rows, keys)
    assert digest(rows[:1], keys) != digest(rows, keys)


def test_parameters_are_compared_by_their_bits_and_not_by_name(
    script: dict[str, Any], tmp_path: Path
) -> None:
    def digest(tensors: dict[str, Any]) -> str | None:
        folder = tmp_path / "policies" / "last"
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "policy.safetensors")
        found: str | None = script["digest_of_parameters"](tmp_path)
        return found

    one, two = np.arange(3.0), np.ones(2, np.float32)
    assert script["digest_of_parameters"](tmp_path) is None
    assert digest({"a": one, "b": two}) == digest({"x": one, "c": two})
    assert digest({"a": one, "b": two}) != digest({"a": one, "b": np.nextafter(two, 2)})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_recorded_digest_that_differs_fails_and_is_not_replaced(tmp_path: Path) -> None:
    copy = tmp_path / "scripts"
    copy.mkdir()
    (copy / "fingerprint").write_bytes((SCRIPTS / "fingerprint").read_bytes())
    record = copy / "fingerprint.json"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        call = [
            sys.executable,
            str(copy / "fingerprint"),
            "--tree",
            str(SCRIPTS.parent),
            "ppo/cartpole",
            *words,
        ]
        return subprocess.run(call, capture_output=True, text=True, timeout=250, check=False)

    assert run().returncode == 1  # nothing is recorded
    assert run("--record").returncode == 0
    assert run().returncode == 0
    known = json.loads(record.read_text())
    known["cases"]["ppo/cartpole, overlapped"]["metrics"] = "0" * 64
    record.write_text(json.dumps(known))
    done = run("--record")
    assert done.returncode == 1
    assert "DIFFERENT  metrics of ppo/cartpole, overlapped" in done.stdout
    assert json.loads(record.read_text()) == known
