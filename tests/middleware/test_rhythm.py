"""When something is due."""

from __future__ import annotations

import pytest

from engine.middleware.functional.rhythm import Every, Seldomer


@pytest.mark.parametrize("step", [1, 1024])
def test_what_has_no_end_is_answered_about_as_often_for_every_doubling(step: int) -> None:
    due = Seldomer(50)
    answered = [count for count in range(step, 300_000 * step, step) if due(count)]
    assert answered[:100] == [step * number for number in range(1, 101)], "at first every time"
    start = answered[99]
    while 2 * start < 290_000 * step:
        inside = sum(start < count <= 2 * start for count in answered)
        assert 45 <= inside <= 110, start
        start *= 2
    assert len(answered) < 100 + 110 * 15


def test_a_rhythm_does_not_drift() -> None:
    due = Every(100)
    assert [count for count in (0, 64, 128, 192, 256, 900, 901) if due(count)] == [128, 256, 900]
