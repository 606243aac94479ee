"""Publishing to Service Bus: one batch at a time, the next when the last is settled, so that nothing overtakes.

The SDK waits for the settlement of each batch, and the service does not say which message of a rejected batch is to blame:
smaller batches find it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from headwater.brokers.base import Left, Offered, Published, Refused, destinations
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.brokers.servicebus.envelope import Envelopes
from headwater.brokers.servicebus.refusal import (
    Verdict,
    is_answer,
    is_busy,
    judge,
    no_entity,
    no_entry,
    reason_of,
    unavailable,
)
from headwater.brokers.servicebus.sender import Senders, require_sdk
from headwater.brokers.servicebus.sessions import Group, groups
from headwater.errors import BrokerError, BrokerUnavailable
from headwater.model import Messages

if TYPE_CHECKING:
    from azure.servicebus.exceptions import ServiceBusError

# A connection on which nothing is settled is given up after a part of the timeout, so that another one can be tried in time;
# but the SDK takes a good part of a second to open a link.
_TRIES_PER_TIMEOUT, _SHORTEST_TRY_SECONDS = 3, 2.0
# Between tries: short at first, since a connection that was idle may just be gone, and longer for a service that is busy.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0


class ServiceBusBroker:
    """One writer, for one thread at a time. It counts no duplicates: the service drops them without a word."""

    def __init__(self, access: ServiceBusAccess) -> None:
        require_sdk()
        self._access = access
        self._seconds = seconds = access.timeout.total_seconds()
        self._try_seconds = max(seconds / _TRIES_PER_TIMEOUT, min(seconds, _SHORTEST_TRY_SECONDS))
        self._senders = Senders(access, self._try_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._senders.close()

    def check(self) -> None:
        """Open a link to the entity, if there is but one: a namespace lets nobody in for none."""
        from azure.servicebus.exceptions import ServiceBusError

        entity, where = self._access.entity, self._access.describe()
        if "{" in entity:
            return
        try:
            self._senders.get(entity)
        except ServiceBusError as error:
            self._senders.drop(entity)
            match judge(error):
                case Verdict.AGAIN:
                    raise unavailable(entity, where, error) from error
                case Verdict.NO_ENTITY:
                    raise BrokerError(no_entity(entity, where)) from error
                case _:
                    raise no_entry(entity, where, error) from error

    def publish(self, messages: Messages) -> Published:
        """Send messages, each key in order; on return each is settled, or refused for good.

        They go entity by entity and, with sessions, key by key. A batch that was not settled is sent again, and then what
        comes behind it, until nothing has moved for `access.timeout`: then it is `BrokerUnavailable`.
        """
        unsettled = self._send_all(messages, _Patience(self._seconds))
        refused = tuple(one for one in unsettled if isinstance(one, Refused))
        return Published(len(messages) - len(refused), 0, refused)

    def offer(self, messages: Messages) -> Offered:
        """As `Broker.offer` says. What comes in a session behind a batch that was not settled is not sent."""
        patience = _Patience(self._seconds, is_once=True)
        unsettled = self._send_all(messages, patience)
        refused = tuple(one for one in unsettled if isinstance(one, Refused))
        left = tuple(one for one in unsettled if isinstance(one, Left))
        stored = len(messages) - len(unsettled)
        if patience.error is not None and not stored and not any(one.was_sent for one in left):
            raise patience.error
        return Offered(stored, 0, refused, left)

    def _send_all(self, messages: Messages, patience: "_Patience") -> list[Refused | Left]:
        """What is not stored, in the order of the messages."""
        envelopes, keys = Envelopes(self._access, messages), messages.column("key") if self._access.sessions else None
        unsettled = [
            one
            for group in groups(destinations(self._access.entity, messages), keys)
            for one in self._send_group(group, envelopes, patience)
        ]
        return sorted(unsettled, key=lambda one: one.index)

    def _send_group(self, group: Group, envelopes: Envelopes, patience: "_Patience") -> Iterator[Refused | Left]:
        rest = group.places
        if not group.entity:
            yield from (Refused(int(place), "it names no queue or topic; give it a topic") for place in rest)
            return
        # How many of the next messages are known to hold one that is refused: a half of them is tried by itself.
        suspects = 0
        while len(rest):
            if patience.is_spent:
                yield from _left(rest, 0, patience.error or self._too_slow(), was_answered=False)
                return
            step = self._attempt(group.entity, envelopes, rest[: max(suspects // 2, 1)] if suspects else rest)
            if step.error is not None:
                if patience.spend(step.error):
                    continue
                yield from _left(rest, step.count, step.error, was_answered=step.was_answered)
                return
            patience.renew()
            if step.reason is None:
                rest, suspects = rest[step.count :], max(suspects - step.count, 0)
            elif step.is_for_all:
                yield from (Refused(int(place), step.reason) for place in rest)
                return
            elif step.count == 1:
                yield Refused(int(rest[0]), step.reason)
                rest, suspects = rest[1:], 0
            else:
                suspects = step.count

    def _attempt(self, entity: str, envelopes: Envelopes, places: npt.NDArray[np.int64]) -> "_Step":
        """Send as many of the messages as fit into a batch."""
        from azure.servicebus.exceptions import ServiceBusError

        count = 0
        try:
            sender = self._senders.get(entity)
            batch = sender.create_message_batch()
            count, misfit = envelopes.fill(batch, places)
            if not count:
                return _Step(1, misfit)
            sender.send_messages(batch, timeout=self._try_seconds)
        except ServiceBusError as error:
            # Whatever is still on its way must not arrive behind what is sent next.
            if not is_busy(error):
                self._senders.drop(entity)
            return self._judged(entity, count, error)
        except BrokerUnavailable as error:
            self._senders.drop(entity)
            return _Step(count, error=error)
        except BaseException:
            self._senders.drop(entity)
            raise
        return _Step(count)

    def _too_slow(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"Service Bus at {self._access.describe()} did not settle all messages within {self._seconds:g} s; send fewer "
            "at once, or raise the timeout"
        )

    def _judged(self, entity: str, count: int, error: "ServiceBusError") -> "_Step":
        where = self._access.describe()
        match judge(error):
            case Verdict.NO_ENTRY:
                return _Step(count, error=_caused(no_entry(entity, where, error), error))
            case Verdict.NO_ENTITY:
                return _Step(count, no_entity(entity, where), is_for_all=True)
            case Verdict.REFUSED if count:
                return _Step(count, reason_of(error))
            case Verdict.REFUSED:
                return _Step(count, error=_caused(no_entry(entity, where, error), error))
            case Verdict.AGAIN:
                return _Step(count, error=_caused(unavailable(entity, where, error), error), was_answered=is_answer(error))


def _left(places: npt.NDArray[np.int64], sent: int, error: BrokerError, *, was_answered: bool) -> Iterator[Left]:
    """Messages of which the first were sent, and not settled."""
    return (
        Left(place, str(error), was_sent=at < sent, was_answered=was_answered and at < sent)
        for at, place in enumerate(places.tolist())
    )


def _caused(error: BrokerError, cause: Exception) -> BrokerError:
    error.__cause__ = cause
    return error


@dataclass(frozen=True, slots=True)
class _Step:
    """What became of the first `count` messages: stored, or there is one among them that is refused for a reason.

    With an `error`, they were not settled, for a reason that is not theirs.
    """

    count: int
    reason: str | None = None
    is_for_all: bool = False
    error: BrokerError | None = None
    # Whether the service said so itself.
    was_answered: bool = False


class _Patience:
    """How long a publish goes on without moving; with `is_once` it does not try again, and has so long for all."""

    def __init__(self, seconds: float, *, is_once: bool = False) -> None:
        self._seconds, self._is_once = seconds, is_once
        self._deadline = time.monotonic() + seconds
        # The first that was met.
        self.error: BrokerError | None = None
        self.renew()

    @property
    def is_spent(self) -> bool:
        return self._is_once and time.monotonic() > self._deadline

    def renew(self) -> None:
        """Something has moved."""
        self._since, self._pause = time.monotonic(), _FIRST_PAUSE_SECONDS

    def spend(self, error: BrokerError) -> bool:
        """Wait before the next try, if there is to be one; raises the error once nothing has moved for too long."""
        self.error = self.error or error
        if self._is_once:
            return False
        left = self._since + self._seconds - time.monotonic()
        if left <= 0 or not error.retryable:
            raise error
        time.sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return True
