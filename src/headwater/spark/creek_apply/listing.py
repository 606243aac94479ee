"""The snapshots of a table that its stream still has."""

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import stream_info
from headwater.creek.consumer.mapping import Topic
from headwater.creek.names import Kind
from headwater.spark.creek_apply.settings import ApplySettings

# The header and the end.
_AROUND_ROWS = 2
# The random part of a suffix, with what parts it from the time.
_RANDOM = 5


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A snapshot by its topic, when it was taken by its producer's clock, and its messages but the header and the end."""

    name: str
    at: datetime | None
    messages: int


def list_snapshots(settings: ApplySettings, topic: Topic) -> list[ListedSnapshot]:
    """In the order of their names, which is that of time."""
    names = settings.names(topic.database)
    subject = f"{names.subject(Kind.SNAPSHOT, topic.schema, topic.table)}.*"
    with closing(Link(settings.access)) as link:
        info = stream_info(link, names.stream(Kind.SNAPSHOT), subject)
    counts = {} if info is None else info.subject_counts
    return [ListedSnapshot(name, _taken_at(name), max(0, count - _AROUND_ROWS)) for name, count in sorted(counts.items())]


def _taken_at(name: str) -> datetime | None:
    try:
        return datetime.strptime(name.rpartition(".")[2][:-_RANDOM], "%Y%m%d%H%M%S_%f").replace(tzinfo=UTC)
    except ValueError:
        return None
