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

from headwater.brokers.base import Published, Refused, destinations
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.brokers.servicebus.envelope import Envelopes
from headwater.brokers.servicebus.refusal import Verdict, is_busy, judge, no_entity, no_entry, reason_of, unavailable
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
        envelopes = Envelopes(self._access, messages)
        keys = messages.column("key") if self._access.sessions else None
        patience = _Patience(self._seconds)
        refused = [
            one
            for group in groups(destinations(self._access.entity, messages), keys)
            for one in self._publish_group(group, envelopes, patience)
        ]
        return Published(len(messages) - len(refused), 0, tuple(sorted(refused, key=lambda one: one.index)))

    def _publish_group(self, group: Group, envelopes: Envelopes, patience: "_Patience") -> Iterator[Refused]:
        rest = group.places
        if not group.entity:
            yield from (Refused(int(place), "it names no queue or topic; give it a topic") for place in rest)
            return
        # How many of the next messages are known to hold one that is refused: a half of them is tried by itself.
        suspects = 0
        while len(rest):
            try:
                step = self._attempt(group.entity, envelopes, rest[: max(suspects // 2, 1)] if suspects else rest)
            except BrokerUnavailable as error:
                patience.spend(error)
                continue
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
        """Send as many of the messages as fit into a batch; a reason that may pass is raised as BrokerUnavailable."""
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
        except BaseException:
            self._senders.drop(entity)
            raise
        return _Step(count)

    def _judged(self, entity: str, count: int, error: "ServiceBusError") -> "_Step":
        where = self._access.describe()
        match judge(error):
            case Verdict.NO_ENTRY:
                raise no_entry(entity, where, error) from error
            case Verdict.NO_ENTITY:
                return _Step(count, no_entity(entity, where), is_for_all=True)
            case Verdict.REFUSED if count:
                return _Step(count, reason_of(error))
            case Verdict.REFUSED:
                raise no_entry(entity, where, error) from error
            case Verdict.AGAIN:
                raise unavailable(entity, where, error) from error


@dataclass(frozen=True, slots=True)
class _Step:
    """What became of the first `count` messages: stored, or there is one among them that is refused for a reason."""

    count: int
    reason: str | None = None
    is_for_all: bool = False


class _Patience:
    """How long a publish goes on without moving."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Something has moved."""
        self._since, self._pause = time.monotonic(), _FIRST_PAUSE_SECONDS

    def spend(self, error: BrokerUnavailable) -> None:
        """Wait before the next try; raises the error once nothing has moved for too long."""
        left = self._since + self._seconds - time.monotonic()
        if left <= 0:
            raise error
        time.sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
