"""How far a stream has come, as Spark logs it: JSON of strings and numbers whose keys always stand in the same order.

The number of lanes and their rule are part of it, so that a logged range is split again as it was, whatever the options say
by then; and so is whose positions these are, what the range that ends there holds, and which tables are being read as a
whole or have been not long ago.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from headwater.capture.tables import Name
from headwater.errors import PositionError
from headwater.model import Lsn, Position
from headwater.spark.rules import LaneRule
from headwater.spark.sources.content import Content
from headwater.spark.sources.load import Join, Load

# Raised when the meaning of a logged range changes, such as which change falls into which lane.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """All changes before `position` in the stream of a slot are covered; `timeline` has written what lies before it.

    Changes of the tables in `dropped` are left out: they wait to be read as a whole, or were taken out; those in `added` are
    delivered though no option names them. `load` is the attempt to read tables that is under way, and `joins` are those that
    have ended while transactions that they cover are still to come. Each time that the slot is made it has another
    `generation`, which knows nothing of what was before.
    """

    system: str
    slot: str
    position: Position
    timeline: int
    lanes: int
    rule: LaneRule
    content: Content = field(default_factory=Content)
    dropped: tuple[Name, ...] = ()
    added: tuple[Name, ...] = ()
    generation: str = ""
    load: Load | None = None
    joins: tuple[Join, ...] = ()

    @property
    def needed(self) -> Position:
        """The earliest position whose changes may still be asked for."""
        return self.position if self.load is None else min(self.position, self.load.position)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark logs, and compares as text."""
        return {
            "version": VERSION,
            "system": self.system,
            "slot": self.slot,
            "lsn": str(self.position.commit_lsn),
            "ordinal": self.position.ordinal,
            "timeline": self.timeline,
            "lanes": self.lanes,
            "by": self.rule.value,
            "holds": self.content.to_json(),
            "dropped": [list(table) for table in self.dropped],
            "added": [list(table) for table in self.added],
            "generation": self.generation,
            "load": None if self.load is None else self.load.to_json(),
            "joins": [join.to_json() for join in self.joins],
        }

    @classmethod
    def from_json(cls, logged: Mapping[str, object]) -> "Offset":
        """The offset that was logged; raises PositionError for one that is not ours."""
        try:
            if logged["version"] != VERSION:
                raise PositionError(
                    f"the checkpoint was written by another release (version {logged['version']}, not {VERSION}); go on "
                    "with that one, or remove the checkpoint directory: the slot keeps the position"
                )
            position = Position(Lsn.parse(str(logged["lsn"])), _whole(logged["ordinal"], 0))
            timeline, lanes, rule = _whole(logged["timeline"]), _whole(logged["lanes"]), LaneRule(str(logged["by"]))
            content = Content.from_json(cast("Mapping[str, object]", logged["holds"]))
            load, joins = cast("Any", logged["load"]), cast("Any", logged["joins"])
            return cls(
                str(logged["system"]),
                str(logged["slot"]),
                position,
                timeline,
                lanes,
                rule,
                content,
                _names(logged["dropped"]),
                _names(logged["added"]),
                str(logged["generation"]),
                None if load is None else Load.from_json(load),
                tuple(map(Join.from_json, joins)),
            )
        except (KeyError, ValueError, TypeError) as exc:
            raise PositionError(
                "the checkpoint directory is not one of a `headwater.changes` source; name another, or remove it"
            ) from exc


def _names(listed: object) -> tuple[Name, ...]:
    return tuple((str(schema), str(name)) for schema, name in cast("Any", listed))


def _whole(number: object, least: int = 1) -> int:
    found = int(str(number))
    if found < least:
        raise ValueError(f"{found} is less than {least}")
    return found
