"""What pika raises, as errors of ours: who may try again, and what to do. The password is in none of them."""

import re
import ssl
from collections.abc import Iterator

from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorPhaseErrorBase,
    AMQPConnectorStackTimeout,
)
from pika.exceptions import (
    AMQPHeartbeatTimeout,
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.errors import BrokerError, BrokerUnavailable

_ACCESS_REFUSED, _NOT_FOUND, _PRECONDITION, _NOT_ALLOWED = 403, 404, 406, 530
# The broker's own words, as pika packs them: who we are, or the virtual host. At its start it has other reasons to hang up.
_TOLD = re.compile(rf"{ConnectionClosedByBroker.__name__}: \(({_ACCESS_REFUSED}|{_NOT_ALLOWED})\)")
_MAX_SIZE = re.compile(r"larger than (?:the |configured )*max(?:imum)? size (?:of )?(\d+)")


def not_opened(error: BaseException, access: RabbitmqAccess) -> BrokerError:
    """The error for a connection that did not come about."""
    where, server = access.describe(), access.server
    for cause in _causes(error):
        match cause:
            # pika guesses these from how far it came; that the broker said so itself is in the text.
            case AuthenticationError() | ProbableAuthenticationError() if _was_told(cause):
                return BrokerError(f"RabbitMQ at {where} does not let us in; check user and password in its url")
            case ProbableAccessDeniedError() if _was_told(cause):
                return BrokerError(
                    f"RabbitMQ at {where} does not let us into the virtual host {server.virtual_host!r}; check that it "
                    "exists, and that the user has permissions in it"
                )
            case ssl.SSLCertVerificationError():
                return BrokerError(
                    f"the certificate of RabbitMQ at {where} is not trusted ({cause.verify_message}); set tls_ca to the "
                    "authority that signed it"
                )
            case ssl.SSLError():
                return BrokerError(f"no TLS with RabbitMQ at {where} ({cause.reason}); check that this is its port for TLS")
            case AMQPConnectorStackTimeout() | TimeoutError():
                return no_answer(access)
            case OSError():
                reason = cause.strerror or str(cause)
                return BrokerUnavailable(f"cannot reach RabbitMQ at {where}: {reason}; check that it runs")
    hint = "" if server.is_tls else "; if this is its port for TLS, write amqps://"
    return BrokerUnavailable(f"RabbitMQ at {where} hung up before it let us in{hint}")


def no_answer(access: RabbitmqAccess) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"RabbitMQ at {access.describe()} does not answer within {access.timeout.total_seconds():g} s; check that it runs, "
        "and that its url has the right port"
    )


def blocked(reason: str, access: RabbitmqAccess) -> BrokerUnavailable:
    """The error for a broker that reads nothing for now, for a reason in its own words."""
    return BrokerUnavailable(
        f"RabbitMQ at {access.describe()} takes no messages for now ({reason}); let consumers catch up, give it more memory "
        "or disk, or change its limits"
    )


def ended(error: BaseException, access: RabbitmqAccess) -> BrokerError:
    """The error for a connection or channel that ended while it was in use."""
    where = access.describe()
    match error:
        case ChannelClosedByBroker(reply_code=code, reply_text=text):
            return _channel_closed(code, text, access)
        case ConnectionClosedByBroker(reply_code=code, reply_text=text):
            return BrokerUnavailable(f"RabbitMQ at {where} closed the connection: {text} ({code})")
        case AMQPHeartbeatTimeout():
            return BrokerUnavailable(f"RabbitMQ at {where} gave no sign of life for twice the heartbeat")
        case StreamLostError():
            return BrokerUnavailable(f"lost the connection to RabbitMQ at {where}")
        case _:
            return BrokerUnavailable(f"lost the connection to RabbitMQ at {where} ({type(error).__name__})")


def told_limit(error: BaseException) -> int | None:
    """The largest payload that the broker takes, if that is what it closed the channel for."""
    if isinstance(error, ChannelClosedByBroker) and error.reply_code == _PRECONDITION:
        match = _MAX_SIZE.search(error.reply_text)
        return None if match is None else int(match[1])
    return None


def _channel_closed(code: int, text: str, access: RabbitmqAccess) -> BrokerError:
    where, exchange = access.describe(), access.exchange
    if code == _NOT_FOUND:
        return BrokerError(
            f"RabbitMQ at {where} has no exchange {exchange!r} in the virtual host {access.server.virtual_host!r}; declare "
            "it, or name another one"
        )
    if code == _ACCESS_REFUSED:
        return BrokerError(
            f"RabbitMQ at {where} does not let us publish to the exchange {exchange!r}; give the user permission to write"
        )
    return BrokerError(f"RabbitMQ at {where} closed the channel: {text} ({code})")


def _was_told(error: BaseException) -> bool:
    """Whether the broker refused us, and did not just hang up on the way."""
    return isinstance(error, AuthenticationError) or _TOLD.search(str(error.args)) is not None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what is packed into it, from the outside in."""
    yield error
    match error:
        case AMQPConnectionWorkflowFailed(exceptions=packed):
            yield from _causes(packed[-1])
        case AMQPConnectorPhaseErrorBase(exception=packed):
            yield from _causes(packed)
        case _:
            for packed in error.args:
                if isinstance(packed, BaseException):
                    yield from _causes(packed)
