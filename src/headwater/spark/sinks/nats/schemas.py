"""Schemas on their way to those who read messages: kept in the source's database, then published, before any message."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b

import pyarrow as pa

from headwater.brokers.nats.publisher import Outgoing, Publisher
from headwater.creek.framing import packets
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names
from headwater.creek.schema import AvroSchema
from headwater.creek.store import save_schemas
from headwater.errors import BrokerError
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.messages import Relation
from headwater.spark.sinks.nats.outgoing import chunk_bytes


@dataclass(frozen=True, slots=True)
class Announced:
    """What has been published: the schema that is the last on each subject, and widened ones, by fingerprint and subject."""

    last: Mapping[str, str] = field(default_factory=dict)
    widened: frozenset[tuple[str, str]] = frozenset()

    def __add__(self, other: "Announced") -> "Announced":
        return Announced({**self.last, **other.last}, self.widened | other.widened)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A schema of a table, and at which event it comes into use, which keeps its id apart from earlier ones."""

    relation: Relation
    schema: AvroSchema
    occasion: str


class Announcer:
    """Keeps and publishes schemas through one publisher, and knows which have been.

    The last schema on a subject is the one that a table's rows are under: when rows of an old shape come late, theirs is
    published again, and then the new one. A widened one is followed by the plain one at once.
    """

    def __init__(
        self, names: Names, system_identifier: str, source_url: str, publisher: Publisher, announced: Announced
    ) -> None:
        self._names, self._system_identifier = names, system_identifier
        self._source_url, self._publisher = source_url, publisher
        self._announced = announced
        # What this one has added.
        self.added = Announced()

    def require(self, relation: Relation, schema: AvroSchema, widened: AvroSchema | None, occasion: str) -> None:
        """See to it that whoever gets a message under these schemas can find them."""
        subject = self._names.subject(Kind.SCHEMA, relation.schema, relation.name)
        if widened is not None and (widened.name, subject) not in self._announced.widened:
            wide = Announcement(relation, widened, occasion)
            self.announce([wide, Announcement(relation, schema, f"{occasion}-again")])
            self._add(Announced(widened=frozenset({(widened.name, subject)})))
        elif self._announced.last.get(subject) != schema.text:
            self.announce([Announcement(relation, schema, occasion)])

    def announce(self, schemas: Sequence[Announcement]) -> None:
        """Keep schemas, and then publish them; all is durable on return."""
        now = datetime.now(UTC)
        messages = [_message(one, now) for one in schemas]
        with translated(self._source_url), closing(connect_sync(self._source_url)) as connection:
            save_schemas(connection, messages)
        for one, message in zip(schemas, messages, strict=True):
            self._publish(one, message)

    def _publish(self, one: Announcement, message: SchemaMessage) -> None:
        relation = one.relation
        subject = self._names.subject(Kind.SCHEMA, relation.schema, relation.name)
        parts = packets(message.to_json(), chunk_bytes(self._publisher.max_payload))
        ids = [f"{self._id(one)}-seq-{number}" for number in range(len(parts))]
        starts = pa.array([number == 0 for number in range(len(parts))])
        outgoing = Outgoing(subject, pa.array(ids), pa.array(parts, pa.binary()), None, starts if len(parts) > 1 else None)
        for refused in self._publisher.publish(outgoing).refused:
            raise BrokerError(f"the schema of {relation.table} was refused on {subject}: {refused.reason}")
        self._add(Announced({subject: one.schema.text}))

    def _add(self, announced: Announced) -> None:
        self._announced += announced
        self.added += announced

    def _id(self, one: Announcement) -> str:
        """Not the fingerprint alone: other tables may have the same one, and the same table may come back to it.

        Subjects and occasions can have anything in them, so that a digest stands for them.
        """
        facts = (self._names.root, self._names.database, one.relation.table, one.schema.text, one.occasion)
        digest = blake2b("\0".join(facts).encode(), digest_size=12).hexdigest()
        return f"schema-{self._system_identifier}-{one.schema.name}-{digest}"


def _message(one: Announcement, now: datetime) -> SchemaMessage:
    return SchemaMessage(one.schema.name, one.schema.text, one.relation.table, now)
