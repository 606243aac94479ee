"""Schemas: from the table's own subject of the schema stream, else from the producer that is asked for a fingerprint."""

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from headwater.creek.client.broker import Broker, StreamMissing
from headwater.creek.client.feed import Feed, Start
from headwater.creek.client.messages import Messages
from headwater.creek.decode import Decoder
from headwater.creek.fingerprint import fingerprint_text
from headwater.creek.framing import FIRST_BYTES
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names
from headwater.errors import BrokerUnavailable, MessageError, NoSchema

# As many as Creek's own client keeps.
CACHED: Final = 256

V = TypeVar("V")


class Cache(Generic[V]):
    """The values that were used last."""

    def __init__(self, size: int = CACHED) -> None:
        self._values: OrderedDict[object, V] = OrderedDict()
        self._size = size

    def get(self, key: object) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: object, value: V) -> None:
        self._values[key] = value
        while len(self._values) > self._size:
            self._values.popitem(last=False)


class Schemas:
    """What one client knows of schemas."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._messages: Cache[SchemaMessage] = Cache()
        self._decoders: Cache[Decoder] = Cache()

    async def decoder(self, names: Names, schema: str, table: str, fingerprint: bytes) -> Decoder:
        """The decoder for messages of a table under a fingerprint.

        The table's own subject comes first. Tables of one name in two schemas share a fingerprint, and so does a table
        before and after a change that Avro does not see (timestamp to timestamptz): a producer knows one schema for all.
        """
        key = (names, schema, table, fingerprint)
        decoder = self._decoders.get(key)
        if decoder is None:
            text = fingerprint_text(fingerprint)
            found = await self._published(names, schema, table, text) or await self.by_fingerprint(names, text)
            decoder = Decoder(found.schema)
            self._decoders.put(key, decoder)
        return decoder

    async def by_fingerprint(self, names: Names, fingerprint: str) -> SchemaMessage:
        """What a producer answers."""
        found = self._messages.get((names, fingerprint))
        if found is None:
            found = await self._requested(names, fingerprint)
            self._messages.put((names, fingerprint), found)
        return found

    async def last(self, names: Names, schema: str, table: str) -> SchemaMessage:
        """The newest one that was published for a table."""
        found = await self._last(names, schema, table)
        if found is None:
            raise NoSchema(
                f"no schema found for {schema}.{table} of database {names.database!r}; nothing is on "
                f"{names.subject(Kind.SCHEMA, schema, table)}"
            )
        return found

    async def _requested(self, names: Names, fingerprint: str) -> SchemaMessage:
        subject = names.schema_requests[0]
        try:
            answer = await self._broker.request(subject, fingerprint.encode())
        except BrokerUnavailable as error:
            raise NoSchema(f"no schema found for fingerprint {fingerprint}: {error}") from error
        found = _parsed(answer.data, subject)
        if found.fingerprint != fingerprint:
            raise MessageError(f"asked for schema {fingerprint}, the answer on {subject} is schema {found.fingerprint}")
        return found

    async def _published(self, names: Names, schema: str, table: str, fingerprint: str) -> SchemaMessage | None:
        """The newest of a table's published schemas that has the fingerprint."""
        last = await self._last(names, schema, table)
        if last is None or last.fingerprint == fingerprint:
            return last
        every = await self._all(names, schema, table)
        return next((message for message in reversed(every) if message.fingerprint == fingerprint), None)

    async def _last(self, names: Names, schema: str, table: str) -> SchemaMessage | None:
        subject = names.subject(Kind.SCHEMA, schema, table)
        try:
            found = await self._broker.last_message(names.stream(Kind.SCHEMA), subject)
        except StreamMissing:
            return None
        if found is None:
            return None
        _, packet = found
        if int.from_bytes(packet[:FIRST_BYTES]) == len(packet) - FIRST_BYTES:
            return _parsed(packet[FIRST_BYTES:], subject)
        # The last packet of a schema that is larger than one.
        every = await self._all(names, schema, table)
        return every[-1] if every else None

    async def _all(self, names: Names, schema: str, table: str) -> list[SchemaMessage]:
        """All that is on a table's subject."""
        stream, subject = names.stream(Kind.SCHEMA), names.subject(Kind.SCHEMA, schema, table)
        last = await self._broker.last_message(stream, subject)
        feed = Feed(self._broker, stream, subject, Start())
        messages = Messages(feed)
        found = []
        try:
            sequence = 0
            while last is not None and sequence < last[0]:
                whole = await messages.next(self._broker.seconds)
                if whole is None:
                    raise BrokerUnavailable(f"the schemas on {subject} do not arrive from NATS {self._broker.place}")
                sequence, _, body = whole
                found.append(_parsed(body, subject))
        finally:
            await feed.close()
        return found


def _parsed(body: bytes, subject: str) -> SchemaMessage:
    try:
        return SchemaMessage.from_json(body)
    except ValueError as error:
        raise MessageError(f"what is on {subject} is no schema: {error}") from error
