"""A live area at the bottom of a terminal, which stays whole when the terminal gets narrower.

A terminal that gets narrower breaks lines that have become too long for it, so that the picture covers more
rows than were drawn, and those above stay when the next picture takes its place.  How many rows it covers
follows from the lengths of its lines; that many are taken back.  The few terminals that cut lines off in
place of breaking them lose as many rows of what stands above the picture.
"""

from __future__ import annotations

import math

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment


class Screen(Console):
    """A console that raises BrokenPipeError if its reader has gone; rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        """Be called by rich where it has caught a BrokenPipeError."""
        raise BrokenPipeError


class Area(Live):
    """`rich.live.Live` that is drawn when it is told to, and takes back what the terminal has broken."""

    def __init__(self, console: Console, *, redirect_stdout: bool = False) -> None:
        super().__init__(
            console=console, auto_refresh=False, redirect_stdout=redirect_stdout, redirect_stderr=True
        )
        self._picture = _Picture("")

    def show(self, renderable: RenderableType) -> None:
        """Draw a picture in place of the one before."""
        if not self.is_started:
            self.start()
        self._picture.renderable = renderable
        self.update(self._picture, refresh=True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase the rows up to where the picture begins; called for all that is printed."""
        broken = self._picture.rows(self.console.width) - len(self._picture.lengths)
        found = super().process_renderables(renderables)
        up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * broken
        return [Control((ControlType.CARRIAGE_RETURN,), *up), *found] if broken else found


class _Picture:
    """What is shown, and how long the lines were that it was last drawn in."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable
        self.lengths: list[int] = []

    def rows(self, width: int) -> int:
        """How many rows it covers in a terminal of `width` columns that breaks lines."""
        return sum(max(1, math.ceil(length / width)) for length in self.lengths)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.renderable, options, pad=False)
        self.lengths = [Segment.get_line_length(line) for line in lines[: options.size.height]]
        for line in lines:
            yield from line
            yield Segment.line()
