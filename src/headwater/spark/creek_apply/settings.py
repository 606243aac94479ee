"""What a consumer is told: where the streams are, where the tables go, and how it works."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.consumer.mapping import Topic
from headwater.creek.names import Generation, Kind, Names
from headwater.spark.rules import MIB
from headwater.spark.sinks.postgres.session import Address

# Under which the target knows the consumer: of epochs, dead letters, and what tables looked like.
PIPELINE: Final = "creek"
SINK: Final = "creek"
# About as long as a server takes to restart, or a standby to be promoted.
_PATIENCE: Final = timedelta(seconds=30)


class Mode(StrEnum):
    """What becomes of rows that the target has and a snapshot does not: they stay, or they go."""

    UPSERT = "upsert"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySettings:
    """A consumer. `url` is the target database, `max_bytes` what is applied at a time.

    `answer` is how long a producer may take to begin a snapshot, and then for each part of it.
    """

    access: NatsAccess
    url: str = field(repr=False)
    namespace: str = "CREEK"
    generation: Generation = Generation.ONE
    lanes: int = 4
    max_bytes: int = 16 * MIB
    answer: timedelta = timedelta(seconds=60)
    master: str = "local[*]"
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    def names(self, database: str) -> Names:
        return Names(self.namespace, database, self.generation)

    def subject(self, topic: Topic) -> str:
        """Where the changes of a table are."""
        return self.names(topic.database).subject(Kind.WAL, topic.schema, topic.table)

    def address(self, sink: str = SINK) -> Address:
        """How the target is written to; it holds its dead letters, too."""
        return Address(PIPELINE, sink, self.url, self.url, _PATIENCE)
