"""A small terminal: what it shows after the output of a program, and after it was made narrower or wider.

It knows the codes that a live panel uses and refuses others.  Most terminals break lines that have become
too long and join them again (`breaks=True`); a few cut them off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

CODE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


@dataclass
class Row:
    """One row of the screen or of what was scrolled off it."""

    cells: list[str] = field(default_factory=list)
    goes_on: bool = False
    """Whether the next row is the rest of the same line."""

    @property
    def text(self) -> str:
        return "".join(self.cells).rstrip()


class Terminal:
    """Takes text as a file does; `screen` is what can be seen, `lines` also what was scrolled off."""

    encoding = "utf-8"

    def __init__(self, width: int, height: int = 100, *, breaks: bool = True) -> None:
        self.width, self.height, self.breaks = width, height, breaks
        self.rows = [Row()]
        self.row = self.column = 0

    @property
    def top(self) -> int:
        return max(0, len(self.rows) - self.height)

    @property
    def screen(self) -> list[str]:
        return [row.text for row in self.rows[self.top :]]

    def resize(self, width: int) -> None:
        if self.breaks:
            self._break(width)
        elif width < self.width:
            for row in self.rows:
                del row.cells[width:]
            self.column = min(self.column, width - 1)
        self.width = width

    def _break(self, width: int) -> None:
        rows: list[Row] = []
        line: list[str] = []
        place = 0  # of the cursor in its line
        found = (0, 0)
        here = False
        for index, row in enumerate(self.rows):
            if index == self.row:
                here, place = True, len(line) + self.column
                row.cells += [" "] * (self.column - len(row.cells))
            line += row.cells
            if row.goes_on:
                continue
            pieces = [line[start : start + width] for start in range(0, len(line), width)] or [[]]
            if here:
                down = min(place // width, len(pieces) - 1)
                found, here = (len(rows) + down, place - down * width), False
            rows += [Row(piece, True) for piece in pieces]
            rows[-1].goes_on = False
            line = []
        self.rows = rows
        self.row, self.column = found

    def write(self, text: str) -> int:
        place = 0
        while place < len(text):
            code = CODE.match(text, place)
            if code:
                self._obey(code[2], code[1])
                place = code.end()
            else:
                self._put(text[place])
                place += 1
        return len(text)

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.rows[self.row].goes_on = False
            self._down()
            self.column = 0
        else:
            assert letter.isprintable(), f"not known to this terminal: {letter!r}"
            if self.column >= self.width:
                self.rows[self.row].goes_on = True
                self._down()
                self.column = 0
            cells = self.rows[self.row].cells
            cells += [" "] * (self.column + 1 - len(cells))
            cells[self.column] = letter
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append(Row())

    def _obey(self, letter: str, number: str) -> None:
        if letter == "A":
            self.row = max(self.top, self.row - int(number or 1))
        elif letter == "K":
            assert number == "2"
            self.rows[self.row] = Row()
            if self.row and self.rows[self.row - 1].goes_on:
                self.rows[self.row - 1].goes_on = False
        else:
            assert letter in "mhl", f"not known to this terminal: {number}{letter}"

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True
