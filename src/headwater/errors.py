"""Every error that Headwater raises, in one tree; each says whether trying again can help.

Facts are attributes, the message says what failed, on which object, and what to do. Foreign errors are translated where
their socket or file is owned, with `raise ... from`, so that nothing above that shell knows a driver's classes.
"""

from datetime import timedelta


class HeadwaterError(Exception):
    """The root of all errors that Headwater raises on purpose."""

    retryable = False


class SettingsError(HeadwaterError):
    """Wrong configuration or usage; raised before anything starts. `faults` are its sentences, where several are wrong."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class SchemaError(HeadwaterError):
    """Tables of Headwater's own are missing, or of another version."""


class SourceError(HeadwaterError):
    """PostgreSQL, as the source, refused or cannot do what is asked; `sqlstate` is its own code, if it gave one."""

    def __init__(self, message: str, *, sqlstate: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class ConnectionLost(SourceError):
    """The server cannot be reached or hung up."""

    retryable = True


class SlotLost(SourceError):
    """What a slot was to keep is gone, so changes are missing from it; tables have to be read as a whole again."""


class SlotMissing(SlotLost):
    """No replication slot has the wanted name."""

    def __init__(self, slot: str) -> None:
        super().__init__(f"replication slot {slot!r} does not exist; run `headwater slots` to see which do")
        self.slot = slot


class SlotActive(SourceError):
    """Somebody else reads the slot, or makes it; a reader that just died holds it for a moment longer."""

    retryable = True

    def __init__(self, slot: str, reason: str, remedy: str = "stop its reader, or name another slot") -> None:
        super().__init__(f"replication slot {slot!r} is in use ({reason}); {remedy}")
        self.slot, self.reason = slot, reason


class SlotInvalidated(SlotLost):
    """The server gave up the slot's WAL; what it held is gone, so capture must start anew."""

    def __init__(self, slot: str, reason: str) -> None:
        super().__init__(
            f"replication slot {slot!r} was invalidated by the server ({reason}); drop it with "
            f"`headwater slots drop {slot}`, raise max_slot_wal_keep_size, and start again"
        )
        self.slot, self.reason = slot, reason


class IdentityMissing(SourceError):
    """A table has no replica identity, so its updates and deletes cannot be told apart."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table} has no replica identity, so its updates and deletes cannot be captured; add a primary key, "
            f"or run `alter table {table} replica identity full`"
        )
        self.table = table


class DecodeError(SourceError):
    """Bytes from the server that are not a pgoutput message, or a value that its type cannot hold."""

    def __init__(self, reason: str, *, lsn: int | None = None, message_type: str | None = None) -> None:
        kind = f" {message_type!r}" if message_type else ""
        place = f" at {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}" if lsn is not None else ""
        super().__init__(f"cannot decode replication message{kind}{place}: {reason}")
        self.reason, self.lsn, self.message_type = reason, lsn, message_type


class PositionError(HeadwaterError):
    """A position that does not fit where it is used."""


class PositionExpired(PositionError):
    """What stood there was removed; `oldest` is the first that is left."""

    def __init__(self, place: str, wanted: int, oldest: int, remedy: str = "go on from there, or from later") -> None:
        super().__init__(f"{place} has no message {wanted} any more, the oldest is {oldest}; {remedy}")
        self.wanted, self.oldest = wanted, oldest


class PipelineFailed(HeadwaterError):
    """Spark, or code that is not ours, failed; nothing of the batch was confirmed. A process that died is worth a try."""

    retryable = True


class TransformError(HeadwaterError):
    """The user's transform raised, does not parse, or returns other columns than it was given."""


class OutboxError(HeadwaterError):
    """An event that cannot be written as it is, or not there; nothing was sent, and the transaction is as it was."""


class RelayFailed(HeadwaterError):
    """A task of the outbox relay failed so often that it was not started again; what it had is in the outbox."""

    def __init__(self, task: str, failures: int, within: timedelta, reason: str) -> None:
        super().__init__(
            f"the task {task!r} of the outbox relay failed {failures} times within {within.total_seconds():g} s, at last "
            f"with: {reason}; correct that and start the relay again, events wait in the outbox"
        )
        self.task, self.reason = task, reason


class TopicError(HeadwaterError):
    """A topic, a group or a message that is not as it must be; nothing was written."""


class JobError(HeadwaterError):
    """A job that is not as it must be, or is not there; nothing was written."""


class LeaseLost(HeadwaterError):
    """Somebody else has taken over what was to be settled; nothing moved, and it is dealt with there."""


class SinkError(HeadwaterError):
    """A sink refused or cannot do what is asked."""

    def __init__(self, sink: str, reason: str) -> None:
        super().__init__(f"sink {sink!r}: {reason}")
        self.sink, self.reason = sink, reason


class SinkUnavailable(SinkError):
    """The target cannot be reached, or is too busy; nothing of the batch was confirmed."""

    retryable = True


class SinkFenced(SinkError):
    """A later run of the same pipeline has taken the sink over; this one must not write to it any more."""


class BrokerError(HeadwaterError):
    """A message broker refused or cannot do what is asked."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached, hung up, gave no answer, or has no room; what it did not acknowledge was not sent."""

    retryable = True


class MessageError(BrokerError):
    """A message that is not what its place promises, so that it cannot be read; nothing behind it was read either."""


class NoSchema(BrokerError):
    """No schema is known for a table, or under a fingerprint."""


class SnapshotFailed(BrokerError):
    """A producer refused a snapshot or broke it off; what was read of it is not the whole table."""
