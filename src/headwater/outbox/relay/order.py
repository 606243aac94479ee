"""What may go together where keys keep their order, and what becomes of it. Pure.

Events of one key go together as long as all goes well. What the broker did not take holds up those after it in its key, and
only those: they are sent again when it is settled, also such as the broker has taken meanwhile.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from headwater.brokers.base import Left, Offered
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.outcome import Outcome, Unpublished
from headwater.outbox.relay.portion import take_portion
from headwater.outbox.relay.retry import Suspects, company
from headwater.outbox.relay.settings import RelaySettings

# Beyond that the first are forgotten: the worst that comes of it is that some events are sent twice.
_CAUTIOUS: Final = 10_000
# So many of a key have gone well together that the rest may come along.
_ENOUGH: Final = 256


class Caution:
    """How many of a key go together after one of them was not taken: one, and twice as many each time that goes well."""

    def __init__(self, most: int = _CAUTIOUS) -> None:
        self._most = most
        self._allowed: OrderedDict[str, int] = OrderedDict()

    def allowed(self, key: str) -> int | None:
        """None for as many as there are."""
        return self._allowed.get(key)

    def failed(self, key: str) -> None:
        self._allowed.pop(key, None)
        self._allowed[key] = 1
        if len(self._allowed) > self._most:
            self._allowed.popitem(last=False)

    def went_well(self, key: str) -> None:
        if (allowed := self._allowed.get(key)) is not None:
            if allowed >= _ENOUGH:
                del self._allowed[key]
            else:
                self._allowed[key] = 2 * allowed


def choose(entries: Sequence[Entry], suspects: Suspects, caution: Caution, window: int) -> list[Entry]:
    """What is sent next of entries in their order: of each key the first ones, and none that an earlier one may harm.

    One that was tried in vain before goes without those behind it, and one that is suspected to break connections in the
    company of such as are no less suspect.
    """
    if not entries:
        return []
    level = suspects.level(entries[0])
    counts: dict[str, int] = {}
    ended: set[str] = set()
    chosen: deque[Entry] = deque()
    for entry in entries:
        key = order_of(entry)
        if key in ended:
            continue
        count = counts.get(key, 0)
        allowed = caution.allowed(key)
        if suspects.level(entry) != level or (allowed is not None and count >= allowed) or (count and entry.attempts):
            ended.add(key)
            continue
        chosen.append(entry)
        counts[key] = count + 1
        if entry.attempts:
            ended.add(key)
    return take_portion(chosen, min(window, company(level) or window))


class OrderedJudge:
    """Decides by the settings, and by chance how long to wait; remembers which keys and events want care."""

    def __init__(self, settings: RelaySettings, chance: Callable[[], float] = random.random) -> None:
        self._settings, self._chance = settings, chance
        self._suspects, self._caution = Suspects(), Caution()

    def choose(self, entries: Sequence[Entry]) -> list[Entry]:
        return choose(entries, self._suspects, self._caution, self._settings.window)

    def judge(self, entries: Sequence[Entry], offered: Offered) -> Outcome:
        """The outcome of an offer of entries in their order; what is in no part of it is as if it had not been sent."""
        outcome = Outcome(nacks=len(offered.left), returns=len(offered.refused))
        refused = {one.index: one.reason for one in offered.refused}
        left = {one.index: one for one in offered.left}
        held: set[str] = set()
        for index, entry in enumerate(entries):
            one, key = left.get(index), order_of(entry)
            if one is not None and one.was_sent and not one.was_answered:
                outcome.suspects.append(entry)
            if key in held:
                continue
            if one is not None:
                if not self._judge_left(outcome, entry, one):
                    held.add(key)
                continue
            entry.tries += 1
            if (reason := refused.get(index)) is not None:
                outcome.unpublished.append(Unpublished.dead(entry, reason))
            else:
                outcome.published.append(entry)
        self._remember(entries, outcome, held)
        return outcome

    def _judge_left(self, outcome: Outcome, entry: Entry, one: Left) -> bool:
        """Whether it is settled, and holds up nothing."""
        if not one.was_sent:
            # Others were to blame: it has had no attempt.
            return False
        entry.tries += 1
        settings, attempts = self._settings, entry.attempts + entry.tries
        if attempts >= settings.max_attempts:
            outcome.unpublished.append(Unpublished.dead(entry, f"given up after {attempts} attempts: {one.reason}"))
            return True
        first, failures = settings.retry_wait, attempts - settings.quick_retries
        if failures <= 0:
            first, failures = settings.quick_wait, attempts
        wait = full_jitter(first, settings.longest_wait, failures, self._chance())
        outcome.unpublished.append(Unpublished(entry, "pending", wait, one.reason))
        return False

    def _remember(self, entries: Sequence[Entry], outcome: Outcome, held: set[str]) -> None:
        self._suspects.clear(outcome.published)
        self._suspects.blame(outcome.suspects)
        for key in held:
            self._caution.failed(key)
        for key in {order_of(entry) for entry in entries} - held:
            self._caution.went_well(key)


def order_of(entry: Entry) -> str:
    """What it keeps its order with: its key, or nothing but itself."""
    return entry.id if entry.key is None else entry.key
