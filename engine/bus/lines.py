"""The direct way of a small call: the thread that waits for the answer sends and receives itself.

A call that goes by the network's thread is handed from thread to thread twice, which takes longer than
the message.  So a transport may have *lines*, connections that belong to whoever waits.  A line
promises nothing: where no answer comes soon, the caller asks again by the lanes, which lose nothing,
and the number of the call lets whoever serves it see that it is the same one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.bus.message import Call, Failure, Held, Reply, pack, unpack
from engine.bus.transport import Line
from engine.errors import CodecError

ANSWER_SECONDS = 0.01
"""What takes longer is asked for by the lanes, where every wait looks at everything it must."""

MOST_LINES = 4
"""To one peer: so many threads may call it at the same time by lines; the others go by the lanes."""


@dataclass(slots=True, eq=False)
class TakenLine:
    """A line while one call has it, until that has ended one way or another."""

    number: int
    line: Line
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: bool = False

    def ask(self, call: Call) -> Reply | Failure | bool:
        """Return what is answered to a call.

        True where it was sent and not answered soon, False where it was not sent.
        """
        with self.lock:
            return False if self.gone else self._ask(call)

    def _ask(self, call: Call) -> Reply | Failure | bool:
        call.line = self.number
        if not self.line.send(pack(call)):
            call.line = 0
            return False
        until = time.monotonic() + ANSWER_SECONDS
        while (frame := self.line.receive()) is not None:
            try:
                answer = unpack(frame)
            except CodecError:
                break
            if isinstance(answer, Reply | Failure) and answer.number == call.number:
                return answer
            if isinstance(answer, Held) and answer.number == call.number:
                break
            if time.monotonic() > until:
                break
            # The answer to an earlier call that nobody waited for any more.
        return True

    def close(self) -> None:
        """Let go of the line, once nobody asks by it: soon."""
        with self.lock:
            self.gone = True
            self.line.close()


@dataclass(slots=True, eq=False)
class _Lines:
    """The lines to one peer."""

    made: list[TakenLine] = field(default_factory=list)
    idle: list[TakenLine] = field(default_factory=list)


class Lines:
    """The lines to all peers."""

    def __init__(self, open: Callable[[str, int], Line | None]) -> None:
        self._open = open
        self._lock = threading.Lock()
        self._peers: dict[str, _Lines] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    @property
    def count(self) -> int:
        """How many there are."""
        with self._lock:
            return sum(len(lines.made) for lines in self._peers.values())

    def take(self, peer: str) -> TakenLine | None:
        """Return a line to a peer, for one call; None where there is none to be had."""
        with self._lock:
            if self._closed:
                return None
            lines = self._peers.get(peer) or _Lines()
            if lines.idle:
                return lines.idle.pop()
            if len(lines.made) >= MOST_LINES:
                return None
            number = next(self._numbers)
            line = self._open(peer, number)
            if line is None:
                return None
            taken = TakenLine(number, line)
            lines.made.append(taken)
            self._peers[peer] = lines
            return taken

    def give_back(self, peer: str, taken: TakenLine) -> None:
        """Let others have a line again, unless it was let go of meanwhile."""
        with self._lock:
            lines = self._peers.get(peer)
            if lines is not None and taken in lines.made:
                lines.idle.append(taken)

    def drop(self, peer: str) -> None:
        """Let go of the lines to a peer."""
        with self._lock:
            lines = self._peers.pop(peer, None)
        for taken in lines.made if lines is not None else ():
            taken.close()

    def close(self) -> None:
        """Let go of all lines."""
        with self._lock:
            self._closed = True
            peers = list(self._peers)
        for peer in peers:
            self.drop(peer)
