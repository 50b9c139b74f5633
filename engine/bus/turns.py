"""Whose turn it is to answer, if several processes serve one method."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence


class Turns:
    """Gives each call to the server with the fewest calls of this process under way, equals in turn.

    So the same calls one after the other go to the same servers in every run.  Processes of one role,
    told apart by the number in the name `me`, begin with different servers.  From any thread.
    """

    def __init__(self, me: str) -> None:
        number = re.search(r"\d+$", me)
        self._first = int(number[0]) if number else 0
        self._next: dict[str, int] = {}  # by method
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()

    def next(self, method: str, servers: Sequence[str]) -> str:
        """Return the server, one of `servers`, whose turn it is."""
        if len(servers) == 1:
            return servers[0]
        with self._lock:
            return self._choose(method, servers)

    def begin(self, method: str, servers: Sequence[str]) -> str:
        """As `next`, and count a call as under way there until `end`."""
        with self._lock:
            server = self._choose(method, servers)
            self._under_way[server] += 1
            return server

    def end(self, server: str) -> None:
        """A call that `begin` counted is over."""
        with self._lock:
            self._under_way[server] -= 1
            if not self._under_way[server]:
                del self._under_way[server]

    def _choose(self, method: str, servers: Sequence[str]) -> str:
        at, count = self._next.get(method, self._first), len(servers)
        least = min(range(count), key=lambda place: (self._under_way[servers[(at + place) % count]], place))
        self._next[method] = (at + least + 1) % count
        return servers[(at + least) % count]
