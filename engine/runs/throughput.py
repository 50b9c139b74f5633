"""How fast a run is, and how long it still takes."""

from __future__ import annotations

_SHORTEST = 30.0
_MOST_SAMPLES = 512


class Throughput:
    """Env steps a second over the later half of the run (at least 30 s), pauses included.

    The window grows with the run: it forgets a slow start, follows a change of speed, and covers several
    evaluations, so that their pauses count at their true share.
    """

    def __init__(self, now: float, env_step: int = 0) -> None:
        self._start = now
        self._samples = [(now, env_step)]
        self._added = 0

    def add(self, now: float, env_step: int) -> None:
        """Note how far the run is; called a few times a second."""
        self._samples.append((now, env_step))
        self._added += 1
        window = max(_SHORTEST, (now - self._start) / 2)
        first = 0
        while first < len(self._samples) - 2 and self._samples[first + 1][0] <= now - window:
            first += 1
        del self._samples[:first]
        if len(self._samples) > _MOST_SAMPLES:
            del self._samples[1:-1:2]

    def rate(self) -> float | None:
        """Env steps a second; None before anything is known."""
        (first_time, first_step), (last_time, last_step) = self._samples[0], self._samples[-1]
        if last_time <= first_time or last_step <= first_step:
            return None
        return (last_step - first_step) / (last_time - first_time)

    def remaining(self, total: int | None) -> float | None:
        """Seconds until env step `total`; None where nobody can know.

        The first look tells nothing: it holds the making of everything, and an iteration that warms up.
        """
        rate = self.rate()
        if total is None or rate is None or self._added < 2:
            return None
        return max(0.0, (total - self._samples[-1][1]) / rate)


def duration(seconds: float | None) -> str:
    """``0:42``, ``1:02:03``, ``2 days 3:04:05``; ``-`` for None."""
    if seconds is None:
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hour}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
