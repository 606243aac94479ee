"""The options of the source `headwater.changes`: strings from Spark, checked and made into values."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

from headwater.errors import SettingsError
from headwater.postgres.replication.slot import check_slot_name
from headwater.spark.settings import MIB, LaneRule, SnapshotRule
from headwater.spark.shape import Shape
from headwater.spark.sources.protect import Protection

Choice = TypeVar("Choice", bound=StrEnum)

# By their names in lower case: that is how Spark hands them on.
_KNOWN = {
    name.lower(): name
    for name in (
        "url",
        "slot",
        "publication",
        "tables",
        "shape",
        "table",
        "lanes",
        "laneBy",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
        "mask",
        "hash",
        "salt",
        "streaming",
        "spillDirectory",
        "snapshot",
        "pipeline",
        "stateUrl",
        "wholePublication",
        "statusIntervalMs",
    )
}
# Partitions travel inside of Spark's messages, which end at 128 MiB.
_MOST_BYTES = 100 * MIB
_LEAST_BYTES = MIB // 16
_NAME = re.compile(r'(?:"[^"]*"|[^,"]|")+')
_MASK_FORM = 'option `mask` is a JSON object of texts, such as {"public.customers.phone": "***"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is read, and in which shape. `tables` are made sure to be published; without any, what the publication has.

    Which tables are to be read as a whole is looked up under the name `pipeline` in the database `state_url`; without one,
    only changes are read. With `whole_publication` the tables that somebody adds to the publication, by name, are read too,
    and those that are taken out of it are left alone. The slot moves every `status_interval` at most.
    """

    url: str = field(repr=False)
    slot: str
    publication: str
    tables: tuple[str, ...]
    shape: Shape
    table: str | None
    lanes: int
    lane_by: LaneRule
    max_rows: int | None
    max_bytes: int
    protection: Protection
    streaming: bool
    spill_directory: str | None
    snapshot: SnapshotRule
    pipeline: str
    state_url: str | None = field(repr=False)
    whole_publication: bool = False
    status_interval: timedelta = timedelta(seconds=1)


def parse_options(given: Mapping[str, str]) -> Options:
    """The options of a `readStream`."""
    options = dict(_recognised(given))
    for name in ("url", "slot"):
        if not options.get(name):
            raise SettingsError(f"`headwater.changes` needs the option {name!r}")
    shape, table = _choice(Shape, "shape", options.get("shape", Shape.ENVELOPE)), options.get("table")
    if (shape is Shape.TABLE) != (table is not None):
        raise SettingsError("shape `table` and the option `table` go together: name the one table to read by its columns")
    protection = _protection(options)
    if shape is not Shape.ENVELOPE and protection != Protection():
        raise SettingsError("`mask` and `hash` work on shape `envelope` alone")
    check_slot_name(options["slot"])
    snapshot = _choice(SnapshotRule, "snapshot", options.get("snapshot", SnapshotRule.NEVER))
    tables = _names(options.get("tables", table or ""))
    if snapshot is SnapshotRule.INITIAL and not tables:
        raise SettingsError("snapshot `initial` needs the option `tables`: name what is to be read")
    state_url = options.get("stateUrl", options["url"] if snapshot is SnapshotRule.INITIAL else None)
    return Options(
        url=options["url"],
        slot=options["slot"],
        publication=options.get("publication", options["slot"]),
        tables=tables,
        shape=shape,
        table=table,
        lanes=_number("lanes", options.get("lanes", "4"), 1, 256),
        lane_by=_choice(LaneRule, "laneBy", options.get("laneBy", LaneRule.TABLE)),
        max_rows=_number("maxRowsPerTrigger", options.get("maxRowsPerTrigger", "0"), 0) or None,
        max_bytes=_number("maxBytesPerTrigger", options.get("maxBytesPerTrigger", str(16 * MIB)), _LEAST_BYTES, _MOST_BYTES),
        protection=protection,
        streaming=_switch("streaming", options.get("streaming", "true")),
        spill_directory=options.get("spillDirectory"),
        snapshot=snapshot,
        pipeline=options.get("pipeline", options["slot"]),
        state_url=state_url,
        whole_publication=_switch("wholePublication", options.get("wholePublication", "false")),
        status_interval=timedelta(milliseconds=_number("statusIntervalMs", options.get("statusIntervalMs", "1000"), 1)),
    )


class _Switch(StrEnum):
    ON = "true"
    OFF = "false"


def _recognised(given: Mapping[str, str]) -> Mapping[str, str]:
    found = {}
    for name, value in given.items():
        if name.lower() not in _KNOWN:
            near = get_close_matches(name.lower(), _KNOWN, 1)
            hint = f"did you mean {_KNOWN[near[0]]!r}?" if near else f"there are {', '.join(_KNOWN.values())}"
            raise SettingsError(f"`headwater.changes` has no option {name!r}; {hint}")
        found[_KNOWN[name.lower()]] = value
    return found


def _protection(options: Mapping[str, str]) -> Protection:
    try:
        mask = json.loads(options.get("mask", "{}"))
    except ValueError as exc:
        raise SettingsError(_MASK_FORM) from exc
    if not isinstance(mask, dict) or not all(isinstance(text, str) for text in mask.values()):
        raise SettingsError(_MASK_FORM)
    hashed = _names(options.get("hash", ""))
    for column in (*mask, *hashed):
        if column.count(".") < 2:
            raise SettingsError(f"{column!r} names no column; write it as schema.table.column")
    return Protection(mask, frozenset(hashed), options.get("salt", ""))


def _names(text: str) -> tuple[str, ...]:
    """The names in a list; a comma within quotes belongs to the name."""
    return tuple(name for match in _NAME.finditer(text) if (name := match[0].strip()))


def _choice(kind: type[Choice], name: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError as exc:
        raise SettingsError(f"option `{name}` is {text!r}, and has to be one of {', '.join(kind)}") from exc


def _switch(name: str, text: str) -> bool:
    return _choice(_Switch, name, text.lower()) is _Switch.ON


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    limits = f"at least {least}" if most is None else f"between {least} and {most}"
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise SettingsError(f"option `{name}` is {text!r}, and has to be a whole number, {limits}")
    return int(text)
