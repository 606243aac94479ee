"""The options of the source `headwater.changes`: strings from Spark, checked and made into values."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from headwater.errors import SettingsError
from headwater.postgres.replication.slot import check_slot_name
from headwater.spark.rules import MIB, LaneRule, SnapshotRule
from headwater.spark.shape import Shape
from headwater.spark.sources.given import read_choice, read_number, read_switch, recognised
from headwater.spark.sources.protect import Protection

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
# Java holds some copies of a batch; more than this would not fit into the memory that it has by default.
_MOST_BYTES = 64 * MIB
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
    options = dict(recognised(given, _KNOWN, "headwater.changes"))
    for name in ("url", "slot"):
        if not options.get(name):
            raise SettingsError(f"`headwater.changes` needs the option {name!r}")
    shape, table = read_choice(Shape, "shape", options.get("shape", Shape.ENVELOPE)), options.get("table")
    if (shape is Shape.TABLE) != (table is not None):
        raise SettingsError("shape `table` and the option `table` go together: name the one table to read by its columns")
    protection = _protection(options)
    if shape is not Shape.ENVELOPE and protection != Protection():
        raise SettingsError("`mask` and `hash` work on shape `envelope` alone")
    check_slot_name(options["slot"])
    snapshot = read_choice(SnapshotRule, "snapshot", options.get("snapshot", SnapshotRule.NEVER))
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
        lanes=read_number("lanes", options.get("lanes", "4"), 1, 256),
        lane_by=read_choice(LaneRule, "laneBy", options.get("laneBy", LaneRule.TABLE)),
        max_rows=read_number("maxRowsPerTrigger", options.get("maxRowsPerTrigger", "0"), 0) or None,
        max_bytes=read_number(
            "maxBytesPerTrigger", options.get("maxBytesPerTrigger", str(16 * MIB)), _LEAST_BYTES, _MOST_BYTES
        ),
        protection=protection,
        streaming=read_switch("streaming", options.get("streaming", "true")),
        spill_directory=options.get("spillDirectory"),
        snapshot=snapshot,
        pipeline=options.get("pipeline", options["slot"]),
        state_url=state_url,
        whole_publication=read_switch("wholePublication", options.get("wholePublication", "false")),
        status_interval=timedelta(milliseconds=read_number("statusIntervalMs", options.get("statusIntervalMs", "1000"), 1)),
    )


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
