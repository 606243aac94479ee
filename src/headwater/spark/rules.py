"""The choices that settings of a pipeline have, and sizes.

Every Python process of a pipeline loads them, which is why they are apart from `settings`: those load all brokers.
"""

from enum import StrEnum

MIB = 1024 * 1024
# Frames go from the server to the tasks, and are held there a few at a time: twice what sources take whose batches are held
# as a whole.
TOPIC_BYTES = 64 * MIB
# A batch that fails is read again from its beginning.
TOPIC_MOST_BYTES = 1024 * MIB


class LaneRule(StrEnum):
    """The unit that keeps its order: all changes of a table, or all changes of a key."""

    TABLE = "table"
    KEY = "key"


class SnapshotRule(StrEnum):
    """Whether tables are read as a whole before their changes are followed."""

    INITIAL = "initial"
    NEVER = "never"


class SlotLossRule(StrEnum):
    """The reaction to a lost slot: stop, or take a new snapshot of all tables."""

    FAIL = "fail"
    RESNAPSHOT = "resnapshot"


class SchemaChanges(StrEnum):
    """The reaction of a target when a table of the source gets another shape.

    It follows, and has the table read as a whole where the stream does not tell what old rows have; it follows, and has it
    read in any case; it stays as it is, without what it has no columns for; or nothing goes on.
    """

    EVOLVE = "evolve"
    RESNAPSHOT = "resnapshot"
    IGNORE = "ignore"
    STOP = "stop"

    @property
    def follows(self) -> bool:
        """Whether tables of the target are altered."""
        return self in (SchemaChanges.EVOLVE, SchemaChanges.RESNAPSHOT)


class OutboxLanes(StrEnum):
    """The part of an outbox that keeps its order: all messages, or all messages of a key."""

    OUTBOX = "outbox"
    KEY = "key"


class TopicStart(StrEnum):
    """Where a group that is new begins: at the oldest message that is there, or behind the newest."""

    EARLIEST = "earliest"
    LATEST = "latest"


class ExpiredRule(StrEnum):
    """The reaction to messages that were dropped before they were read: stop, or go on with the oldest message."""

    FAIL = "fail"
    EARLIEST = "earliest"


class Encoding(StrEnum):
    """The content of messages: Avro as Creek writes it, in packets, or Debezium's envelope as JSON."""

    CREEK = "creek"
    JSON = "json"
