"""What lies between two offsets: a range of the stream, or of changes that were held back, and pieces of tables. Pure."""

from dataclasses import dataclass

from headwater.capture.tables import Name
from headwater.model import Position
from headwater.spark.sources.load import Join, Load
from headwater.spark.sources.offset import Offset


@dataclass(frozen=True, slots=True)
class Step:
    """One batch. Changes from `start` to before `end`: of the tables in `only`, or if there are none, of all but `without`.

    `joins` say which transactions to leave out; `load` is the attempt whose pieces from `first` to before `last` come too.
    """

    start: Position
    end: Position
    only: frozenset[Name]
    without: frozenset[Name]
    joins: tuple[Join, ...]
    load: Load | None
    first: int
    last: int

    @property
    def completes(self) -> bool:
        """Whether all that an attempt has read takes effect with this batch."""
        return self.load is not None and self.load.is_complete and not self.only


def step_between(before: Offset | None, after: Offset) -> Step:
    """What the batch that ends with an offset holds; `before` is None where nothing is known of what was before."""
    start = after.position if before is None else before.position
    old, new = (None if before is None else before.load), after.load
    if old is not None and old.is_complete and (new is None or new.position > old.position):
        # Held changes come in batches of their own, while the stream stands still.
        end = after.position if new is None else new.position
        return Step(old.position, end, frozenset(old.tables), frozenset(), (old.join,), None, 0, 0)
    without = frozenset(after.dropped) | (frozenset(new.tables) if new is not None else frozenset())
    is_same = old is not None and new is not None and old.attempt == new.attempt
    first = old.delivered if is_same and old is not None else 0
    last = 0 if new is None else new.delivered
    takes_effect = new is not None and new.is_complete and not (is_same and old is not None and old.is_complete)
    load = new if last > first or takes_effect else None
    joins = (after if before is None else before).joins
    return Step(start, after.position, frozenset(), without, joins, load, first, last)
