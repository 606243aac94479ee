"""The options of the source `headwater.outbox`: strings from Spark, checked and made into values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches

from headwater.errors import SettingsError
from headwater.outbox.columns import OutboxColumns
from headwater.postgres.replication.slot import check_slot_name
from headwater.spark.settings import MIB
from headwater.spark.shape import Shape

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


def parse_options(given: Mapping[str, str]) -> OutboxOptions:
    """The options of a `readStream`."""
    options = _recognised(given)
    for name in ("url", "slot"):
        if not options.get(name):
            raise SettingsError(f"`headwater.outbox` needs the option {name!r}")
    check_slot_name(options["slot"])
    shape = options.get("shape", Shape.MESSAGE)
    if shape not in (Shape.MESSAGE, Shape.PACKED):
        raise SettingsError(f"option `shape` is {shape!r}, and has to be message or packed")
    keyed, emitted = _switch(options, "keyed"), _switch(options, "emitted")
    return OutboxOptions(
        url=options["url"],
        slot=options["slot"],
        publication=options.get("publication", options["slot"]),
        table=options.get("table", "headwater.outbox_message"),
        columns=EMITTED_COLUMNS if emitted else _columns(options.get("columns")),
        shape=Shape(shape),
        lanes=_number(options, "lanes", 4, 1, 256) if keyed else 1,
        keyed=keyed,
        max_bytes=_number(options, "maxBytesPerTrigger", 16 * MIB, MIB // 16, 100 * MIB),
        recovery_rows=_number(options, "recoveryRows", 20_000, 1, 1_000_000),
        pipeline=options.get("pipeline", options["slot"]),
        state_url=options.get("stateUrl", options["url"]),
        epoch=_number(options, "epoch", 0, 0) or None,
        checkpoint_interval=timedelta(milliseconds=_number(options, "checkpointIntervalMs", 10_000, 1)),
        status_interval=timedelta(milliseconds=_number(options, "statusIntervalMs", 1000, 1)),
        emitted=emitted,
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


def _recognised(given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in given.items():
        if name.lower() not in _KNOWN:
            near = get_close_matches(name.lower(), _KNOWN, 1)
            hint = f"did you mean {_KNOWN[near[0]]!r}?" if near else f"there are {', '.join(_KNOWN.values())}"
            raise SettingsError(f"`headwater.outbox` has no option {name!r}; {hint}")
        found[_KNOWN[name.lower()]] = value
    return found


def _switch(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise SettingsError(f"option `{name}` is {text!r}, and has to be true or false")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: int, least: int, most: int | None = None) -> int:
    text = options.get(name, str(default))
    limits = f"at least {least}" if most is None else f"between {least} and {most}"
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise SettingsError(f"option `{name}` is {text!r}, and has to be a whole number, {limits}")
    return int(text)
