import pytest
from azure.servicebus import exceptions
from azure.servicebus._pyamqp.error import MessageException, TokenAuthFailure

from headwater.brokers.servicebus.refusal import Verdict, judge


def token_refused(status: int) -> exceptions.ServiceBusAuthenticationError:
    return exceptions.ServiceBusAuthenticationError(error=TokenAuthFailure(status, b"no"))


def rejected(condition: str) -> exceptions.ServiceBusError:
    return exceptions.ServiceBusError("no", error=MessageException(condition.encode()), condition=condition)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (token_refused(401), Verdict.NO_ENTRY),
        (token_refused(403), Verdict.NO_ENTRY),
        (token_refused(404), Verdict.NO_ENTITY),
        (token_refused(500), Verdict.AGAIN),
        (token_refused(503), Verdict.AGAIN),
        (exceptions.ServiceBusAuthorizationError(), Verdict.NO_ENTRY),
        (exceptions.MessagingEntityNotFoundError(), Verdict.NO_ENTITY),
        (exceptions.MessageSizeExceededError(), Verdict.REFUSED),
        (rejected("amqp:not-allowed"), Verdict.REFUSED),
        (rejected("com.microsoft:argument-error"), Verdict.REFUSED),
        (rejected("com.microsoft:container-close"), Verdict.AGAIN),
        (exceptions.ServiceBusServerBusyError(), Verdict.AGAIN),
        (exceptions.ServiceBusQuotaExceededError(), Verdict.AGAIN),
        (exceptions.MessagingEntityDisabledError(), Verdict.AGAIN),
        (exceptions.ServiceBusConnectionError(), Verdict.AGAIN),
        (exceptions.OperationTimeoutError(), Verdict.AGAIN),
        (exceptions.ServiceBusError("of a kind that nobody knows"), Verdict.AGAIN),
    ],
)
def test_an_error_says_whether_another_try_can_help(error, verdict):
    assert judge(error) is verdict
