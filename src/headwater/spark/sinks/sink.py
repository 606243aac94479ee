"""The contract of all sinks: what they are told of a batch, and what they owe when `write` returns."""

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from headwater.model import Position
from headwater.spark.shape import Shape


@dataclass(frozen=True, slots=True)
class Loading:
    """What a batch has of tables that are read as a whole, besides the changes of others.

    The rows are those of the pieces from `first` to before `last` of an attempt; none when the attempt has died since, for
    then another one begins the same tables anew. With `is_complete` all pieces of the attempt have been delivered, in
    earlier batches: its rows take the place of what the tables held, and their changes go on from `position`.

    A sink that holds tables keeps the rows of an attempt aside until then, so that no row of a dead attempt stays.
    """

    attempt: str
    tables: tuple[tuple[str, str], ...]
    first: int
    last: int
    is_complete: bool
    position: Position


@dataclass(frozen=True, slots=True)
class Span:
    """The range of a batch: the changes at or after `start` and before `end`, and rows of tables that are being loaded.

    The same range always holds the same changes. Nothing is keyed by Spark's batch number, which begins again at 0 with a
    new checkpoint directory; after such a loss ranges may also be cut in other places than before.
    """

    start: Position
    end: Position
    loading: Loading | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch's changes at one sink.

    `changes` are those that this call has applied, `skipped` those that an earlier one had, `letters` those that were put
    aside as dead letters.
    """

    changes: int = 0
    skipped: int = 0
    letters: int = 0

    def __add__(self, other: "Written") -> "Written":
        return Written(self.changes + other.changes, self.skipped + other.skipped, self.letters + other.letters)


class Sink(Protocol):
    """A place that changes are delivered to."""

    @property
    def name(self) -> str: ...

    def open(self) -> None:
        """Get ready before the first batch: check the target, make what is missing, take over from an earlier run.

        Raises what would fail later, too. Called once per run, in the driver.
        """

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        """Deliver a batch; it is durable on return. Called in the driver, one batch at a time.

        The same changes may come again, in the same or in another range: what was delivered is not delivered twice where the
        target can tell. A bad row becomes a dead letter; everything else that fails is raised, and the batch comes again.
        """

    def close(self) -> None:
        """Let go of connections."""
