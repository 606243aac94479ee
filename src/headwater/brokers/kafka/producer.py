"""The producer: librdkafka's settings for what we promise, and what it reports outside of deliveries."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.brokers.kafka.access import KafkaAccess
from headwater.errors import SettingsError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

_logger = logging.getLogger(__name__)

# What waits in the producer; each message is there and in the caller's columns.
_QUEUE_KIBIBYTES = 64 * 1024
# Gathers what is produced in a row into one request, and is no wait that anybody would notice.
_LINGER_MILLISECONDS = 5
# A request without answer is given up after a part of the timeout, so that another connection can be tried in time.
_TRIES_PER_TIMEOUT = 3
# librdkafka knows no shorter one.
_SHORTEST_SETUP_MILLISECONDS = 1000


def require_client() -> None:
    """Raise SettingsError where the client is not installed."""
    try:
        import confluent_kafka  # noqa: F401 - only whether it is there
    except ImportError as exc:
        raise SettingsError("Kafka needs the client of Confluent; install headwater[kafka]") from exc


def build_producer(access: KafkaAccess, on_error: Callable[["KafkaError"], None]) -> "Producer":
    """A new producer, which connects by itself; `on_error` hears of what is wrong with brokers and connections."""
    from confluent_kafka import KafkaException, Producer

    settings = {**_defaults(access), **access.settings, **_guarantees(access)}
    try:
        return Producer({**settings, "error_cb": on_error}, logger=_logger)
    except KafkaException as exc:
        reason = access.without_secrets(exc.args[0].str())
        # The cause may repeat a secret.
        raise SettingsError(f"the settings for Kafka are not usable: {reason}") from None


def _defaults(access: KafkaAccess) -> dict[str, str | int]:
    """What the user's settings may change."""
    try_milliseconds = max(int(access.timeout.total_seconds() * 1000) // _TRIES_PER_TIMEOUT, 10)
    return {
        "client.id": "headwater",
        "linger.ms": _LINGER_MILLISECONDS,
        "queue.buffering.max.kbytes": _QUEUE_KIBIBYTES,
        # A key goes to the partition to which Kafka's own client sends it.
        "partitioner": "murmur2_random",
        "request.timeout.ms": try_milliseconds,
        "socket.timeout.ms": try_milliseconds,
        "socket.connection.setup.timeout.ms": max(try_milliseconds, _SHORTEST_SETUP_MILLISECONDS),
        "reconnect.backoff.max.ms": 1000,
        # For so long a topic that the cluster does not know may still be on its way to all brokers.
        "topic.metadata.propagation.max.ms": try_milliseconds,
    }


def _guarantees(access: KafkaAccess) -> dict[str, str | int | bool]:
    """What they may not. librdkafka tries again for ever, in order; we say when it has been long enough."""
    return {
        "bootstrap.servers": access.bootstrap_servers,
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,
    }
