"""Schemas by their fingerprints, as the planner needs them: from the schema stream, which keeps them, or from a producer."""

from collections.abc import Iterable
from contextlib import closing

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.reader import StreamReader
from headwater.brokers.nats.streams import stream_info
from headwater.creek.consumer.mapping import Topic
from headwater.creek.fingerprint import fingerprint_bytes, fingerprint_text
from headwater.creek.framing import Reassembly
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names
from headwater.errors import BrokerUnavailable
from headwater.spark.sources.creek.stream import StreamWatch

_READ_MESSAGES = 1024


class Schemas:
    """What is known of schemas, by table and fingerprint: tables whose columns have other types may share a fingerprint."""

    def __init__(self, access: NatsAccess) -> None:
        self._access = access
        self._known: dict[tuple[Topic, bytes], str] = {}

    def of(self, names: Names, topic: Topic, fingerprints: Iterable[bytes]) -> dict[bytes, str]:
        """The schemas of a table under some fingerprints; raises BrokerUnavailable for one that nobody knows now."""
        wanted = {(topic, fingerprint) for fingerprint in fingerprints}
        if wanted - self._known.keys():
            for message in published_schemas(self._access, names, topic):
                self._known[topic, fingerprint_bytes(message.fingerprint)] = message.schema
        for missing in wanted - self._known.keys():
            self._known[missing] = self._asked(names, *missing)
        return {key[1]: self._known[key] for key in wanted}

    def _asked(self, names: Names, topic: Topic, fingerprint: bytes) -> str:
        name = fingerprint_text(fingerprint)
        with closing(Link(self._access)) as link:
            try:
                answer = link.request(names.schema_requests[0], name.encode())
                return SchemaMessage.from_json(answer).schema
            except (BrokerUnavailable, ValueError) as exc:
                raise BrokerUnavailable(
                    f"schema {name} of table {topic} is not in stream {names.stream(Kind.SCHEMA)!r}, and no producer tells "
                    f"it: {exc}; start the producer of database {topic.database!r}"
                ) from exc


def published_schemas(access: NatsAccess, names: Names, topic: Topic) -> list[SchemaMessage]:
    """The schemas of a table that are on the stream, in order; what is no schema there is left out."""
    stream, subject = names.stream(Kind.SCHEMA), names.subject(Kind.SCHEMA, topic.schema, topic.table)
    with closing(Link(access)) as link:
        if stream_info(link, stream) is None:
            return []
    with closing(StreamWatch(access, stream)) as watch:
        last = watch.last_of(subject)
    found: list[SchemaMessage] = []
    if not last:
        return found
    with closing(StreamReader(access, stream, [subject], 0)) as reader:
        assembly, at = Reassembly(), 0
        while at < last:
            received = reader.read(_READ_MESSAGES, access.timeout.total_seconds())
            if not received:
                break
            for one in received:
                at = one.sequence
                body = assembly.add(one.subject, one.payload)
                if body is not None:
                    found += _parsed(body)
    return found


def _parsed(body: bytes) -> list[SchemaMessage]:
    try:
        message = SchemaMessage.from_json(body)
        fingerprint_bytes(message.fingerprint)
    except ValueError:
        return []
    return [message]
