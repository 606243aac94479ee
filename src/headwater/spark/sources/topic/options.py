"""The options of the source `headwater.topic`: strings from Spark, checked and made into values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import SettingsError
from headwater.spark.rules import MIB, TOPIC_BYTES, TOPIC_MOST_BYTES, ExpiredRule, TopicStart
from headwater.spark.shape import Shape
from headwater.spark.sources.given import read_choice, read_number, recognised

# By their names in lower case: that is how Spark hands them on.
_KNOWN = {
    name.lower(): name
    for name in (
        "url",
        "topic",
        "group",
        "startingOffsets",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
        "onExpired",
        "shape",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """What is read, and in which shape.

    With a `group` its cursors tell where a query without a past begins, and follow what Spark has committed. Otherwise, and
    for a group that is new, `start` does.
    """

    url: str = field(repr=False)
    topic: str
    group: str | None
    start: TopicStart
    max_rows: int | None
    max_bytes: int
    on_expired: ExpiredRule
    shape: Shape


def parse_options(given: Mapping[str, str]) -> TopicOptions:
    """The options of a `read` or `readStream`."""
    options = recognised(given, _KNOWN, "headwater.topic")
    for name in ("url", "topic"):
        if not options.get(name):
            raise SettingsError(f"`headwater.topic` needs the option {name!r}")
    shape = options.get("shape", Shape.TABLE)
    if shape not in (Shape.TABLE, Shape.MESSAGE, Shape.PACKED):
        raise SettingsError(f"option `shape` is {shape!r}, and has to be table, message or packed")
    bytes_per_trigger = options.get("maxBytesPerTrigger", str(TOPIC_BYTES))
    return TopicOptions(
        url=options["url"],
        topic=options["topic"],
        group=options.get("group"),
        start=read_choice(TopicStart, "startingOffsets", options.get("startingOffsets", TopicStart.EARLIEST)),
        max_rows=read_number("maxRowsPerTrigger", options.get("maxRowsPerTrigger", "0"), 0) or None,
        max_bytes=read_number("maxBytesPerTrigger", bytes_per_trigger, MIB // 16, TOPIC_MOST_BYTES),
        on_expired=read_choice(ExpiredRule, "onExpired", options.get("onExpired", ExpiredRule.FAIL)),
        shape=Shape(shape),
    )
