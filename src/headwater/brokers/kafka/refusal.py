"""What an error of librdkafka means for us: who is to blame, and whether trying again can help."""

from enum import Enum
from typing import TYPE_CHECKING

from headwater.brokers.kafka.access import KafkaAccess
from headwater.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# The names of the errors, as librdkafka has them, of which no other try will be better.
_TOPIC = frozenset(
    {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED"}
)
_MESSAGE = frozenset(
    {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_MSG",
        "INVALID_MSG_SIZE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "POLICY_VIOLATION",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_INVALID_ARG",
        "_BAD_MSG",
    }
)
_ENTRY = frozenset(
    {
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "CLUSTER_AUTHORIZATION_FAILED",
    }
)
# How messages come back that were put aside because of another one; they tell nothing.
_PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
_REMEDIES = {
    "UNKNOWN_TOPIC_OR_PART": "create it, or set the topic to one that exists",
    "_UNKNOWN_TOPIC": "create it, or set the topic to one that exists",
    "TOPIC_AUTHORIZATION_FAILED": "give the user the right to write to it",
    "TOPIC_EXCEPTION": "a topic's name has letters, digits, '.', '_' and '-', and is no longer than 249 characters",
}


class Verdict(Enum):
    """What to do after an error."""

    AGAIN = "send again, from the first message that failed on"
    TOPIC = "nothing can be sent to the topic"
    MESSAGE = "a message of the batch will never be taken"
    ENTRY = "we are not let in"
    PURGED = "nothing was wrong with it"


def judge(error: "KafkaError") -> Verdict:
    """What follows from an error; where it is of a batch, it does not tell which message of it is to blame."""
    name = error.name()
    for verdict, names in (
        (Verdict.TOPIC, _TOPIC),
        (Verdict.MESSAGE, _MESSAGE),
        (Verdict.ENTRY, _ENTRY),
        (Verdict.PURGED, _PURGED),
    ):
        if name in names:
            return verdict
    return Verdict.AGAIN


def is_of_broker(error: "KafkaError") -> bool:
    """Whether a broker said so, and not the client on its own account."""
    return not error.name().startswith("_")


def refusal(topic: str, error: "KafkaError") -> str:
    """Why a message is refused for good."""
    remedy = _REMEDIES.get(error.name())
    words = error.str().removeprefix("Unable to produce message: ")
    return f"topic {topic!r}: {words}" + (f"; {remedy}" if remedy else "")


def no_entry(access: KafkaAccess, error: "KafkaError") -> BrokerError:
    return BrokerError(
        f"Kafka at {access.describe()} does not let us in ({access.without_secrets(error.str())}); check security.protocol, "
        "sasl.mechanism, sasl.username and sasl.password in the settings, and that the user may write idempotently"
    )


def unavailable(access: KafkaAccess, error: "KafkaError | None") -> BrokerUnavailable:
    reason = "no answer" if error is None else access.without_secrets(error.str())
    return BrokerUnavailable(
        f"Kafka at {access.describe()} has acknowledged nothing for {access.timeout.total_seconds():g} s: {reason}; check "
        "that its brokers run, that they can be reached where they say they are, and that enough replicas are in sync"
    )
