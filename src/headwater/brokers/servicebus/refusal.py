"""What an error of the SDK means for us: who is to blame, and whether trying again can help."""

from enum import Enum
from typing import TYPE_CHECKING

from headwater.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    from azure.servicebus.exceptions import ServiceBusError

# Conditions with which the service rejects what it will not take later either.
_FINAL = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:decode-error",
        "amqp:precondition-failed",
        "amqp:link:message-size-exceeded",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
        "com.microsoft:precondition-failed",
        "com.microsoft:message-size-exceeded",
    }
)
# Those with which it answers a transfer that it may take later.
_LATER = frozenset(
    {
        "amqp:resource-limit-exceeded",
        "com.microsoft:server-busy",
        "com.microsoft:entity-disabled",
        "com.microsoft:timeout",
    }
)
_UNAUTHORIZED = (401, 403)
_NOT_FOUND = 404


class Verdict(Enum):
    """What to do after an error."""

    AGAIN = "try again"
    NO_ENTITY = "nothing can be sent to the queue or topic"
    REFUSED = "a message will never be taken"
    NO_ENTRY = "we are not let in"


def judge(error: "ServiceBusError") -> Verdict:
    """What follows from an error; of a batch it does not tell which message it is about."""
    from azure.servicebus import exceptions

    match error:
        case exceptions.ServiceBusAuthenticationError():
            return _judge_token(error)
        case exceptions.ServiceBusAuthorizationError():
            return Verdict.NO_ENTRY
        case exceptions.MessagingEntityNotFoundError():
            return Verdict.NO_ENTITY
        case exceptions.MessageSizeExceededError():
            return Verdict.REFUSED
    return Verdict.REFUSED if condition_of(error) in _FINAL else Verdict.AGAIN


def _judge_token(error: "ServiceBusError") -> Verdict:
    status = _token_status(error)
    if status == _NOT_FOUND:
        return Verdict.NO_ENTITY
    # The service may also be too busy to look at a token.
    return Verdict.NO_ENTRY if status in _UNAUTHORIZED else Verdict.AGAIN


def _token_status(error: "ServiceBusError") -> int | None:
    status: int | None = getattr(error.inner_exception, "status_code", None)
    return status


def is_busy(error: "ServiceBusError") -> bool:
    """Whether the service asks us to wait, on a link that is well."""
    from azure.servicebus.exceptions import ServiceBusServerBusyError

    return isinstance(error, ServiceBusServerBusyError)


def is_answer(error: "ServiceBusError") -> bool:
    """Whether the service itself said that it did not take a message, and did not just hang up."""
    return condition_of(error) in _LATER


def condition_of(error: "ServiceBusError") -> str:
    """The condition of AMQP, or nothing where the error is of the SDK's own making."""
    condition = getattr(error.inner_exception, "condition", "")
    return condition.decode() if isinstance(condition, bytes) else str(condition)


def reason_of(error: "ServiceBusError") -> str:
    """The words of the service, in one line; about a token the SDK has them only in the cause."""
    words = str(error.inner_exception) if _token_status(error) is not None else str(error.message)
    return " ".join(words.split())


def no_entry(entity: str, where: str, error: "ServiceBusError") -> BrokerError:
    return BrokerError(
        f"Service Bus at {where} does not let us send to {entity!r} ({reason_of(error)}); check the key in the connection "
        "string, and that its policy has the right to send"
    )


def no_entity(entity: str, where: str) -> str:
    return f"there is no queue or topic {entity!r} at {where}; create it, or set the entity to one that exists"


def unavailable(entity: str, where: str, error: "ServiceBusError") -> BrokerUnavailable:
    return BrokerUnavailable(
        f"Service Bus at {where} does not take messages for {entity!r}: {reason_of(error)}; {_remedy(error)}"
    )


def _remedy(error: "ServiceBusError") -> str:
    from azure.servicebus import exceptions

    match error:
        case exceptions.ServiceBusServerBusyError():
            return "it is too busy: send less, or give the namespace more capacity"
        case exceptions.ServiceBusQuotaExceededError():
            return "it is full: have its messages received, or raise its maximum size"
        case exceptions.MessagingEntityDisabledError():
            return "it is disabled: enable it in the portal"
    return "check that the namespace exists and that its port 5671 can be reached from here"
