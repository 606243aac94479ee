"""The options of the source `headwater.outbox`: strings from Spark, checked and made into values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from headwater.errors import SettingsError
from headwater.outbox.columns import OutboxColumns
from headwater.postgres.replication.slot import check_slot_name
from headwater.spark.rules import MIB
from headwater.spark.shape import Shape
from headwater.spark.sources.given import read_number, read_switch, recognised

# What stands in for the columns of a table: each message has all of them in its content.
EMITTED_COLUMNS = OutboxColumns(id="lsn", payload="content", topic_value="emitted", type_value="emitted")

# By their names in lower case: that is how Spark hands them on.
_KNOWN = {
    name.lower(): name
    for name in (
        "url",
        "slot",
        "publication",
        "table",
        "columns",
        "shape",
        "lanes",
        "keyed",
        "maxBytesPerTrigger",
        "recoveryRows",
        "pipeline",
        "stateUrl",
        "epoch",
        "checkpointIntervalMs",
        "statusIntervalMs",
        "emitted",
        "timeSkewMs",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxOptions:
    """What is read, and in which shape. `epoch` is the number of a run that has taken the checkpoint already.

    With `keyed` messages of the same key keep their order, and there are `lanes` of them; otherwise all do, in one lane.
    With `emitted` messages are those in the WAL, and none of a table.
    """

    url: str = field(repr=False)
    slot: str
    publication: str
    table: str
    columns: OutboxColumns
    shape: Shape
    lanes: int
    keyed: bool
    max_bytes: int
    recovery_rows: int
    pipeline: str
    state_url: str = field(repr=False)
    epoch: int | None
    checkpoint_interval: timedelta
    status_interval: timedelta
    emitted: bool
    time_skew: timedelta


def parse_options(given: Mapping[str, str]) -> OutboxOptions:
    """The options of a `readStream`."""
    options = recognised(given, _KNOWN, "headwater.outbox")
    for name in ("url", "slot"):
        if not options.get(name):
            raise SettingsError(f"`headwater.outbox` needs the option {name!r}")
    check_slot_name(options["slot"])
    shape = options.get("shape", Shape.MESSAGE)
    if shape not in (Shape.MESSAGE, Shape.PACKED):
        raise SettingsError(f"option `shape` is {shape!r}, and has to be message or packed")
    keyed, emitted = (read_switch(name, options.get(name, "false")) for name in ("keyed", "emitted"))
    return OutboxOptions(
        url=options["url"],
        slot=options["slot"],
        publication=options.get("publication", options["slot"]),
        table=options.get("table", "headwater.outbox_message"),
        columns=EMITTED_COLUMNS if emitted else _columns(options.get("columns")),
        shape=Shape(shape),
        lanes=read_number("lanes", options.get("lanes", "4"), 1, 256) if keyed else 1,
        keyed=keyed,
        max_bytes=read_number("maxBytesPerTrigger", options.get("maxBytesPerTrigger", str(32 * MIB)), MIB // 16, 64 * MIB),
        recovery_rows=read_number("recoveryRows", options.get("recoveryRows", "50000"), 1, 1_000_000),
        pipeline=options.get("pipeline", options["slot"]),
        state_url=options.get("stateUrl", options["url"]),
        epoch=read_number("epoch", options.get("epoch", "0"), 0) or None,
        checkpoint_interval=timedelta(
            milliseconds=read_number("checkpointIntervalMs", options.get("checkpointIntervalMs", "10000"), 1)
        ),
        status_interval=timedelta(milliseconds=read_number("statusIntervalMs", options.get("statusIntervalMs", "1000"), 1)),
        emitted=emitted,
        time_skew=-timedelta(
            milliseconds=read_number("timeSkewMs", options.get("timeSkewMs", "-2000").removeprefix("-"), 0)
        ),
    )


def _columns(text: str | None) -> OutboxColumns:
    if text is None:
        return OutboxColumns.headwater()
    try:
        given = json.loads(text)
        return OutboxColumns(**{**given, "header_columns": tuple(map(tuple, given.get("header_columns", ())))})
    except (TypeError, ValueError) as exc:
        raise SettingsError(
            'option `columns` is a JSON object of names, such as {"id": "id", "topic": "kind", "payload": "body"}'
        ) from exc
