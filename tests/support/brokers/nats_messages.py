"""Messages to publish, and what a stream has of them."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from headwater.brokers.nats import Link, NatsAccess, Outgoing, Received, StreamInfo, StreamReader, ensure_stream, stream_info
from headwater.brokers.nats.streams import call


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of a test's own; everything below its name is stored in it."""

    access: NatsAccess
    name: str

    def subject(self, *tokens: str) -> str:
        return ".".join([self.name, *tokens])

    def info(self) -> StreamInfo:
        with Link(self.access) as link:
            info = stream_info(link, self.name)
            assert info is not None
            return info

    def count(self) -> int:
        return self.info().messages

    def messages(self, *subjects: str) -> list[Received]:
        """All that is stored, once more read from the server."""
        expected = self.count()
        with StreamReader(self.access, self.name, subjects, 0) as reader:
            found: list[Received] = []
            while len(found) < expected and (part := reader.read(10_000, 5)):
                found += part
        return found

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages()]

    def call(self, verb: str, **request: object):
        with Link(self.access) as link:
            return call(link, verb, request)

    def create(self, **config: object) -> None:
        self.call(f"STREAM.CREATE.{self.name}", name=self.name, subjects=[f"{self.name}.>"], **config)

    def update(self, **config: object) -> None:
        self.call(f"STREAM.UPDATE.{self.name}", **{**self.info().config, **config})

    def delete(self) -> None:
        self.call(f"STREAM.DELETE.{self.name}")

    def purge(self) -> None:
        self.call(f"STREAM.PURGE.{self.name}")


@contextmanager
def fresh_stream(access: NatsAccess) -> Iterator[Stream]:
    stream = Stream(access, f"S{uuid.uuid4().hex}")
    with Link(access) as link:
        ensure_stream(link, stream.name, [f"{stream.name}.>"], "a test's own")
    yield stream
    with Link(access) as link:
        if stream_info(link, stream.name) is not None:
            stream.delete()


def numbered(count: int, start: int = 0, width: int = 200) -> list[bytes]:
    """Payloads that tell their place."""
    return [b"%0*d" % (width, number) for number in range(start, start + count)]


def outgoing(subject: str, payloads: Sequence[bytes], prefix: str = "id") -> Outgoing:
    ids = pa.array([f"{prefix}-{at}" for at in range(len(payloads))])
    return Outgoing(subject, ids, pa.array(payloads, pa.binary()))
