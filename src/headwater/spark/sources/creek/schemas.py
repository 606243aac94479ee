"""Schemas by their fingerprints, as the planner needs them: from the schema stream, which keeps them, or from a producer."""

import random
import time
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
from headwater.errors import BrokerUnavailable, NoSchema
from headwater.postgres.backoff import Backoff
from headwater.spark.sources.creek.stream import StreamWatch

_READ_MESSAGES = 1024
# How often a schema is asked for at least before it is given up.
_TRIES = 3


class Schemas:
    """What is known of schemas, by table and fingerprint: tables whose columns have other types may share a fingerprint."""

    def __init__(self, access: NatsAccess) -> None:
        self._access = access
        self._known: dict[tuple[Topic, bytes], str] = {}
        self._given_up: set[tuple[Topic, bytes]] = set()

    def of(self, names: Names, topic: Topic, fingerprints: Iterable[bytes]) -> dict[bytes, str]:
        """The schemas of a table under some fingerprints.

        Raises NoSchema for one that stays unknown as long as a producer may be away; the next time, at once.
        """
        wanted = {(topic, fingerprint) for fingerprint in fingerprints}
        deadline, failures = time.monotonic() + self._access.timeout.total_seconds(), 0
        while missing := wanted - self._known.keys():
            try:
                self._look(names, topic, missing)
            except NoSchema:
                failures += 1
                wait = Backoff().after(failures, random.random()).total_seconds()
                is_late = failures >= _TRIES and time.monotonic() + wait > deadline
                if is_late or not missing.isdisjoint(self._given_up):
                    self._given_up |= missing
                    raise
                time.sleep(wait)
        self._given_up -= wanted
        return {key[1]: self._known[key] for key in wanted}

    def _look(self, names: Names, topic: Topic, missing: Iterable[tuple[Topic, bytes]]) -> None:
        for message in published_schemas(self._access, names, topic):
            self._known[topic, fingerprint_bytes(message.fingerprint)] = message.schema
        for key in missing:
            if key not in self._known:
                self._known[key] = self._asked(names, *key)

    def _asked(self, names: Names, topic: Topic, fingerprint: bytes) -> str:
        name = fingerprint_text(fingerprint)
        with closing(Link(self._access)) as link:
            try:
                answer = link.request(names.schema_requests[0], name.encode())
                return SchemaMessage.from_json(answer).schema
            except (BrokerUnavailable, ValueError) as exc:
                # A NATS that is away tells nothing about the schema: this raises what is to be tried again without end.
                Link(self._access).close()
                raise NoSchema(
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
