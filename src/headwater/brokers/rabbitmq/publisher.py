"""Publishing with patience: what the broker did not take is sent again, in order, until nothing has moved for too long.

Or without: each message is sent once, and what the broker did not take is left.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.rabbitmq.envelope import too_large
from headwater.brokers.rabbitmq.flight import Flight
from headwater.brokers.rabbitmq.frames import Outgoing
from headwater.brokers.rabbitmq.ledger import Integers, Ledger
from headwater.brokers.rabbitmq.refusal import blocked, no_answer, told_limit
from headwater.brokers.rabbitmq.session import Session
from headwater.errors import BrokerError, BrokerUnavailable

# Between tries while the broker is away or refuses; short, since what is lost is the time after it is well again.
_PAUSE_SECONDS = 0.1
# Also when the time is almost up, a connection gets a fair chance.
_LEAST_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one call and what is known about them."""

    ids: pa.Array
    outgoing: Outgoing
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class _Trip:
    """A flight, and the messages of the batch that are on it."""

    flight: Flight
    indices: Integers
    outgoing: Outgoing

    def key(self, place: int) -> str:
        return str(self.outgoing.keys[place])


class Publisher:
    """Lives in one event loop. It keeps its session, and opens another one when that has ended."""

    def __init__(self, access: RabbitmqAccess) -> None:
        self._access = access
        self._session: Session | None = None
        self._max_bytes = access.max_bytes
        # Queues that were asked for, and why one was not made.
        self._declared: dict[str, str | None] = {}

    async def publish(self, batch: Batch) -> None:
        """On return, each message of the batch is stored or refused in its ledger."""
        ledger, patience = batch.ledger, _Patience(self._access.timeout.total_seconds())
        is_probing = False
        while (first := ledger.first_open()) is not None:
            patience.start_at(first)
            try:
                nacked = await self._attempt(batch, patience.left, is_probing=is_probing)
            except BrokerUnavailable as error:
                self._drop()
                await patience.spend(error)
            except BaseException:
                # Answers to what is under way must not be taken for those of the next call.
                self._drop()
                raise
            else:
                # While a queue is full, one message is enough to find out when it no longer is: all that is sent with it may
                # be stored each time.
                is_probing = nacked is not None
                if nacked is not None:
                    await patience.spend(self._full(nacked))
            ledger.rewind()

    async def offer(self, batch: Batch) -> None:
        """On return, each message of the batch is stored, refused or left in its ledger; raises if none was sent."""
        clock, seconds = asyncio.get_running_loop().time, self._access.timeout.total_seconds()
        deadline = clock() + seconds
        try:
            session = await self._connected(seconds)
            trip = await self._prepared(session, batch, lambda: self._left_until(deadline), is_once=True)
            if trip is not None:
                await self._offer(session, trip, batch)
        except _OutOfTime:
            raise
        except BrokerError:
            self._drop_unless_blocked()
            raise
        except BaseException:
            self._drop()
            raise

    async def check(self) -> None:
        """Connect if need be, in the timeout at the longest; raises also while the broker says that it takes nothing."""
        session = await self._connected(self._access.timeout.total_seconds())
        if session.blocked is not None:
            raise blocked(session.blocked, self._access)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _attempt(self, batch: Batch, seconds: float, *, is_probing: bool) -> str | None:
        """Send what is open, or the first of it; the routing key of what the broker did not take."""
        session = await self._connected(seconds)
        trip = await self._prepared(session, batch, lambda: max(seconds, _LEAST_SECONDS), is_probing=is_probing)
        if trip is None:
            return None
        try:
            await trip.flight.run()
        except BrokerError:
            if not self._learned(session):
                raise
            # Of a limit that we did not know: the rest is sent again without what is beyond it.
            self._drop()
        finally:
            self._note(trip, batch.ledger)
        nacked = trip.flight.confirms.nacked
        return trip.key(int(nacked[0])) if len(nacked) else None

    async def _offer(self, session: Session, trip: _Trip, batch: Batch) -> None:
        broken = ""
        try:
            await trip.flight.run()
        except BrokerError as error:
            if not trip.flight.confirms.sent:
                raise
            # Whatever it was about, another message may have been to blame.
            broken = str(error)
            if self._learned(session):
                self._refuse_oversized(batch, session)
            self._drop_unless_blocked()
        finally:
            self._note(trip, batch.ledger)
        self._leave(trip, batch.ledger, broken)

    async def _prepared(
        self, session: Session, batch: Batch, left: Callable[[], float], *, is_probing: bool = False, is_once: bool = False
    ) -> _Trip | None:
        """A flight of what is open, or of the first of it, of which nothing was sent yet; None when nothing is open."""
        ledger = batch.ledger
        self._refuse_oversized(batch, session)
        indices = ledger.open()[:1] if is_probing else ledger.open()
        if not len(indices):
            return None
        outgoing = batch.outgoing.chosen(indices)
        if self._access.declare:
            await self._declare(session, outgoing, left)
        limit = left() if is_once else None
        flight = Flight(session, outgoing, lambda: batch.ids.take(pa.array(indices)).to_pylist(), self._access, limit)
        return _Trip(flight, indices, outgoing)

    def _note(self, trip: _Trip, ledger: Ledger) -> None:
        # First: the broker confirms what it returns.
        for place in trip.flight.returned:
            ledger.refuse(int(trip.indices[place]), self._unroutable(trip.key(place)))
        ledger.store(trip.indices[trip.flight.confirms.stored])

    def _leave(self, trip: _Trip, ledger: Ledger, broken: str) -> None:
        """Give up what was not taken, and what a flight that broke had on its way or not yet sent."""
        confirms = trip.flight.confirms
        for place in confirms.nacked.tolist():
            reason = str(self._full(trip.key(place)))
            ledger.leave(trip.indices[place : place + 1], reason, was_sent=True, was_answered=True)
        ledger.leave(trip.indices[: confirms.sent], broken, was_sent=True)
        ledger.leave(trip.indices[confirms.sent :], broken, was_sent=False)

    async def _connected(self, seconds: float) -> Session:
        if self._session is None or self._session.ended is not None:
            self._session = None
            self._session = await Session.open(self._access, max(seconds, _LEAST_SECONDS))
            # Whoever restarted the broker may have lost them.
            self._declared.clear()
        return self._session

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.drop()

    def _drop_unless_blocked(self) -> None:
        """A broker says that it is blocked only to those who have sent something: the next offer need not find out again."""
        if self._session is None or self._session.blocked is None or self._session.ended is not None:
            self._drop()

    def _refuse_oversized(self, batch: Batch, session: Session) -> None:
        for index, reason in too_large(batch.outgoing, self._max_bytes, session.frame_max).items():
            batch.ledger.refuse(index, reason)

    def _learned(self, session: Session) -> bool:
        """Whether the session ended for a payload beyond a limit that is news to us."""
        limit = None if session.ended is None else told_limit(session.ended)
        if limit is None or limit >= self._max_bytes:
            return False
        self._max_bytes = limit
        return True

    async def _declare(self, session: Session, outgoing: Outgoing, left: Callable[[], float]) -> None:
        """Make the queues that are not known, each in the time that is left for it."""
        is_moving = False
        for key in outgoing.keys.unique().to_pylist():
            # The empty name would have the broker invent one.
            if key and key not in self._declared:
                try:
                    self._declared[key] = await session.declare(key, left())
                except BrokerUnavailable as error:
                    if is_moving and session.ended is None:
                        raise _OutOfTime(str(error)) from error
                    raise
                is_moving = True

    def _left_until(self, deadline: float) -> float:
        """How many seconds; raises when they are too few to begin anything."""
        seconds = deadline - asyncio.get_running_loop().time()
        if seconds <= 0:
            raise _OutOfTime(str(no_answer(self._access)))
        return seconds

    def _unroutable(self, key: str) -> str:
        if self._access.exchange:
            return f"unroutable: the exchange {self._access.exchange!r} has no queue for the routing key {key!r}; bind one"
        if (reason := self._declared.get(key)) is not None:
            return f"unroutable: there is no queue {key!r}, and RabbitMQ does not let us make it ({reason})"
        return f"unroutable: there is no queue {key!r}; declare it, or set `declare` for Headwater to make it"

    def _full(self, key: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"RabbitMQ at {self._access.describe()} does not take messages for {key!r}; a queue for it is full and set to "
            "refuse what is new, or not available: let consumers catch up, raise its limits, or look into the broker's log"
        )


class _OutOfTime(BrokerUnavailable):
    """A broker that answers, slowly: the session is as good as before, and the next call goes on where this one was."""


class _Patience:
    """How long a publish goes on without moving."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._first = seconds, -1
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    @property
    def left(self) -> float:
        return self._since + self._seconds - self._clock()

    def start_at(self, first: int) -> None:
        """The first message that is open now."""
        if first != self._first:
            self._first, self._since = first, self._clock()

    async def spend(self, error: BrokerUnavailable) -> None:
        """Wait a little before the next try; raises the error once nothing has moved for too long."""
        if self.left < _PAUSE_SECONDS:
            raise error
        await asyncio.sleep(_PAUSE_SECONDS)
