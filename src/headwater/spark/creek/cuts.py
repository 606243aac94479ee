"""Which rows of a table a task reads at a time, so that what it gives back fits into the driver's memory.

A table is cut evenly, by pages. A cut that turns out to be too much, as with long values that are stored aside, is read in
small parts, down to a single row; as long as these are good, the next ones are larger.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from headwater.capture.pieces import Piece

# 8 MiB of a table: some tenths of a second for a task, so that a stream's tasks need not wait long for their turn.
CUT_PAGES = 1024
# More than a page can have rows, whatever its size.
_ROWS_OF_PAGE = 2048
# What is too much was read in vain: few steps have to lead down to what is good, and those up from there are small.
_FIRST_STEP_DOWN, _STEP_DOWN, _STEP_UP = 32, 2, 1 / 8


@dataclass(frozen=True, slots=True)
class Cut:
    """A range of a table's places for rows, `size` of them; the last one is open, as the table may have grown."""

    piece: Piece
    size: int

    @classmethod
    def of(cls, piece: Piece, pages: int) -> "Cut":
        """All of a piece; `pages` is how many it has at most."""
        last = piece.pages.last
        return cls(piece, (pages if last is None else last - piece.pages.first) * _ROWS_OF_PAGE)

    @property
    def can_be_parted(self) -> bool:
        return self.size > 1

    def parted(self, size: int) -> tuple["Cut", "Cut"]:
        """The first `size` places, which are not all, and the rest."""
        pages = self.piece.pages
        page, row = divmod(pages.first * _ROWS_OF_PAGE + pages.first_row + size, _ROWS_OF_PAGE)
        return (
            Cut(replace(self.piece, pages=replace(pages, last=page, last_row=row)), size),
            Cut(replace(self.piece, pages=replace(pages, first=page, first_row=row)), self.size - size),
        )


class Cuts:
    """What is left to read of a table; many threads take from it."""

    def __init__(self, pieces: Sequence[Piece], pages: int = CUT_PAGES) -> None:
        self._left = deque(Cut.of(piece, pages) for piece in pieces)
        self._most = self._size = pages * _ROWS_OF_PAGE
        self._was_good = False
        self._lock = Lock()

    def take(self) -> Cut | None:
        """The next one, no larger than is likely to be good; None when there is none at the moment."""
        with self._lock:
            if not self._left:
                return None
            cut = self._left.popleft()
            if cut.size > self._most:
                cut, rest = cut.parted(self._most)
                self._left.appendleft(rest)
            return cut

    def give_back(self, cut: Cut) -> None:
        """It was too much: to be read in smaller parts."""
        with self._lock:
            step = _STEP_DOWN if self._was_good else _FIRST_STEP_DOWN
            self._most = max(1, min(self._most, cut.size // step))
            self._was_good = False
            self._left.appendleft(cut)

    def note_read(self) -> None:
        """One was good: a single large row must not make small parts of all the rest."""
        with self._lock:
            self._most = min(self._size, self._most + max(1, int(self._most * _STEP_UP)))
            self._was_good = True
