"""How far a Creek stream was read, as Spark logs it: JSON whose keys always stand in the same order.

Which tables are read, and into how many lanes they go, is part of it, and so is what the batch that ends there holds: a
logged batch is read and split again as it was. It is told by sequences of the stream, so it has the same messages in any
process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from headwater.creek.consumer.mapping import TableMapping
from headwater.errors import PositionError, SettingsError

VERSION = 1

# Tables, each with which beginning of it this is.
Generations: TypeAlias = tuple[tuple[TableMapping, int], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """All messages that end at or before `sequence` are covered.

    `begun` has the sequence of the first packet of each message that began before and ends behind it, by its subject.
    """

    sequence: int
    begun: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_needed(self) -> int:
        """The first packet that has to be read to go on."""
        return min([self.sequence + 1, *self.begun.values()])

    def to_json(self) -> dict[str, object]:
        return {"sequence": self.sequence, "begun": dict(sorted(self.begun.items()))}

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> "Mark":
        return cls(int(logged["sequence"]), {str(subject): int(first) for subject, first in logged["begun"].items()})


@dataclass(frozen=True, slots=True)
class Behind:
    """A table that is read by itself until it has come to where the others are; each beginning is a `generation`."""

    table: TableMapping
    generation: int
    mark: Mark

    def to_json(self) -> dict[str, object]:
        return {"table": str(self.table), "generation": self.generation, **self.mark.to_json()}

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> "Behind":
        return cls(TableMapping.parse(str(logged["table"])), int(logged["generation"]), Mark.from_json(logged))


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: the messages of some tables, with their generations, behind one mark and up to another.

    Tables that are `is_behind` come in batches of their own, while the stream stands still; with `settles` they have come to
    where the others are, and go on with them. `changes` counts the messages by table.
    """

    start: Mark
    end: Mark
    tables: Generations
    is_behind: bool = False
    settles: bool = False
    changes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "start": self.start.to_json(),
            "end": self.end.to_json(),
            "tables": _listed(self.tables),
            "behind": self.is_behind,
            "settles": self.settles,
            "changes": dict(sorted(self.changes.items())),
        }

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> "Step":
        return cls(
            Mark.from_json(logged["start"]),
            Mark.from_json(logged["end"]),
            _generations(logged["tables"]),
            bool(logged["behind"]),
            bool(logged["settles"]),
            {str(table): int(count) for table, count in logged["changes"].items()},
        )


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in a stream, which `identity` tells from others of its name: when it was made.

    `tables` are read as the stream goes on, with their generations; those that are `behind` are not among them. `step` is
    the batch that ends here; the first offset of all has none.
    """

    stream: str
    identity: str
    mark: Mark
    lanes: int
    tables: Generations = ()
    behind: tuple[Behind, ...] = ()
    step: Step | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that Spark logs, and compares as text."""
        return {
            "version": VERSION,
            "stream": self.stream,
            "identity": self.identity,
            **self.mark.to_json(),
            "lanes": self.lanes,
            "tables": _listed(self.tables),
            "behind": [one.to_json() for one in self.behind],
            "step": None if self.step is None else self.step.to_json(),
        }

    @classmethod
    def from_json(cls, logged: Mapping[str, object]) -> "Offset":
        """The offset that was logged; raises PositionError for one that is not ours."""
        try:
            if logged["version"] != VERSION:
                raise PositionError(
                    f"the checkpoint was written by another release (version {logged['version']}, not {VERSION}); go on "
                    "with that one, or name another checkpoint directory"
                )
            step = cast("Any", logged["step"])
            return cls(
                str(logged["stream"]),
                str(logged["identity"]),
                Mark.from_json(logged),
                int(str(logged["lanes"])),
                _generations(cast("Any", logged["tables"])),
                tuple(map(Behind.from_json, cast("Any", logged["behind"]))),
                None if step is None else Step.from_json(step),
            )
        except (KeyError, ValueError, TypeError, AttributeError, SettingsError) as exc:
            raise PositionError(
                "the checkpoint directory is not one of a `headwater.creek` source; name another, or remove it"
            ) from exc


def _listed(tables: Generations) -> list[list[object]]:
    return [[str(table), generation] for table, generation in tables]


def _generations(listed: Sequence[Sequence[Any]]) -> Generations:
    return tuple((TableMapping.parse(str(table)), int(generation)) for table, generation in listed)
