"""The streams of the Creek wire: made if they are missing, and which of a producer's limits go for which of them."""

from dataclasses import replace

from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import StreamLimits, ensure_stream
from headwater.creek.names import Kind, Names


def ensure(link: Link, names: Names, kind: Kind, limits: StreamLimits) -> None:
    """See to it that a stream is there, with the subjects of this database."""
    name = names.stream(kind)
    subjects = [names.stream_subject(kind)]
    ensure_stream(link, name, subjects, f"Creek stream relating to {name}", limits_of(kind, limits))


def limits_of(kind: Kind, limits: StreamLimits) -> StreamLimits:
    """The limits are about changes. Snapshots have their size and age in common with them, but must not go by being read.

    Schemas are few, and needed for as long as there are messages: nothing may drop them.
    """
    match kind:
        case Kind.WAL:
            return limits
        case Kind.SNAPSHOT:
            return replace(limits, retention=None)
        case Kind.SCHEMA:
            return StreamLimits(replicas=limits.replicas)
