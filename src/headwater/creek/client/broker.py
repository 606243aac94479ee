"""The connection that a client's parts share: requests to JetStream and to producers, with errors of our own."""

from collections.abc import Awaitable
from datetime import datetime
from typing import Protocol, TypeVar

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RawStreamMsg
from nats.js.errors import APIError, NotFoundError, ServerError, ServiceUnavailableError

from headwater.brokers.nats.access import NatsAccess
from headwater.errors import BrokerError, BrokerUnavailable

T = TypeVar("T")

# For an answer of JetStream's own; it gives one at once, or is not there.
_API_SECONDS = 5.0
# Its own number for a message that was not found.
_NO_MESSAGE = 10037


class StreamMissing(BrokerError):
    """There is no stream of that name."""


class _NoMessage(BrokerError):
    """The stream has no message of that subject or number."""


class Feeding(Protocol):
    """What is open and has a connection of its own."""

    async def close(self) -> None: ...


class Broker:
    """A NATS server and a connection to it; producers have the time that `access` says for an answer."""

    def __init__(self, client: NatsClient, access: NatsAccess) -> None:
        self.client, self.access, self.place = client, access, access.describe()
        self.jetstream = JetStreamContext(client, timeout=_API_SECONDS)
        self.open_feeds: set[Feeding] = set()

    @property
    def seconds(self) -> float:
        return self.access.timeout.total_seconds()

    async def close(self) -> None:
        for feed in tuple(self.open_feeds):
            await feed.close()
        await self.client.close()

    async def request(self, subject: str, body: bytes) -> Msg:
        """The first answer to a request; producers that cannot answer keep silent."""
        try:
            return await self.client.request(subject, body, timeout=self.seconds)
        except nats.errors.NoRespondersError as error:
            raise BrokerUnavailable(
                f"nobody listens on {subject} at NATS {self.place}; is a producer running in this namespace?"
            ) from error
        except nats.errors.TimeoutError as error:
            raise BrokerUnavailable(
                f"no answer on {subject} at NATS {self.place} within {self.seconds:g} s; producers keep silent about what "
                f"they do not know"
            ) from error
        except nats.errors.Error as error:
            raise self._unavailable(error) from error

    async def sequence_at(self, stream: str, subject: str, time: datetime) -> int:
        """The place of the first message that was stored at a time or later; the one behind the end if there is none."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=time,
            ack_policy=AckPolicy.NONE,
            filter_subject=subject,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_API_SECONDS,
        )
        # A consumer that has handed out nothing yet says where it would begin.
        info = await self._call(self.jetstream.add_consumer(stream, config), stream)
        await self._call(self.jetstream.delete_consumer(stream, info.name), stream)
        return 1 + (info.delivered.stream_seq if info.delivered is not None else 0)

    async def subject_counts(self, stream: str, subjects: str) -> dict[str, int]:
        """How many messages each of the subjects has that a wildcard stands for."""
        info = await self._call(self.jetstream.stream_info(stream, subjects_filter=subjects), stream)
        return info.state.subjects or {}

    async def last_message(self, stream: str, subject: str) -> tuple[int, bytes] | None:
        """The newest message of a subject: its place and its bytes."""
        return await self._message(stream, self.jetstream.get_last_msg(stream, subject))

    async def next_message(self, stream: str, subject: str, sequence: int) -> tuple[int, bytes] | None:
        """The first message of a subject from a place on."""
        return await self._message(stream, self.jetstream.get_msg(stream, seq=sequence, subject=subject, next=True))

    async def _message(self, stream: str, call: Awaitable[RawStreamMsg]) -> tuple[int, bytes] | None:
        try:
            found = await self._call(call, stream)
        except _NoMessage:
            return None
        return found.seq or 0, found.data or b""

    async def _call(self, call: Awaitable[T], stream: str) -> T:
        """What JetStream answers; errors that may pass are `BrokerUnavailable`."""
        try:
            return await call
        except NotFoundError as error:
            if error.err_code == _NO_MESSAGE:
                raise _NoMessage(f"stream {stream!r} has no such message") from error
            raise StreamMissing(
                f"stream {stream!r} does not exist at NATS {self.place}; it was never made, or somebody deleted it: start "
                f"its producer, and check namespace, database and generation"
            ) from error
        except (ServiceUnavailableError, ServerError) as error:
            raise BrokerUnavailable(f"JetStream at NATS {self.place} is not ready: {error.description or error}") from error
        except APIError as error:
            raise BrokerError(f"JetStream at NATS {self.place} refused stream {stream!r}: {error.description}") from error
        except (nats.errors.Error, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> BrokerUnavailable:
        return BrokerUnavailable(f"NATS {self.place} does not answer: {error or type(error).__name__}")
