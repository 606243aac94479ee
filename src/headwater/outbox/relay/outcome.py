"""What becomes of events after an attempt: published, tried again at once or later, or dead. Pure."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater.brokers.base import Offered
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.settings import RelaySettings


@dataclass(frozen=True, slots=True)
class Unpublished:
    """What is to be written down of an event that was not published: dead, or pending and due after a wait."""

    entry: Entry
    status: str
    wait_seconds: float | None
    error: str | None

    @classmethod
    def released(cls, entry: Entry) -> "Unpublished":
        """Let go without an attempt, for whoever claims it."""
        return cls(entry, "pending", None, None)

    @classmethod
    def dead(cls, entry: Entry, reason: str) -> "Unpublished":
        return cls(entry, "dead", None, reason)


@dataclass(slots=True)
class Outcome:
    """The events of one attempt by what becomes of them; `again` with the time when, by the monotonic clock."""

    published: list[Entry] = field(default_factory=list)
    again: list[tuple[float, Entry]] = field(default_factory=list)
    unpublished: list[Unpublished] = field(default_factory=list)
    # Of those above: which were under way when something broke, and so may be to blame.
    suspects: list[Entry] = field(default_factory=list)
    nacks: int = 0
    returns: int = 0


class Judge:
    """Decides by the settings, and by chance how long to wait."""

    def __init__(self, settings: RelaySettings, chance: Callable[[], float] = random.random) -> None:
        self._settings, self._chance = settings, chance

    def judge(self, entries: Sequence[Entry], offered: Offered, now: float) -> Outcome:
        """The outcome of an offer; counts the attempt on each entry that was part of it."""
        if not offered.refused and not offered.left:
            for entry in entries:
                entry.tries += 1
            return Outcome(published=list(entries))
        return self._judge_each(entries, offered, now)

    def _judge_each(self, entries: Sequence[Entry], offered: Offered, now: float) -> Outcome:
        outcome = Outcome(nacks=len(offered.left), returns=len(offered.refused))
        refused = {one.index: one.reason for one in offered.refused}
        left = {one.index: one for one in offered.left}
        for index, entry in enumerate(entries):
            if (reason := refused.get(index)) is not None:
                entry.tries += 1
                outcome.unpublished.append(Unpublished.dead(entry, reason))
            elif (one := left.get(index)) is None:
                entry.tries += 1
                outcome.published.append(entry)
            else:
                # What never went out has had no attempt: others were to blame.
                entry.tries += one.was_sent
                self._judge_left(outcome, entry, one.reason, now)
                if one.was_sent and not one.was_answered:
                    outcome.suspects.append(entry)
        return outcome

    def _judge_left(self, outcome: Outcome, entry: Entry, reason: str, now: float) -> None:
        settings, attempts = self._settings, entry.attempts + entry.tries
        if attempts >= settings.max_attempts:
            outcome.unpublished.append(Unpublished.dead(entry, f"given up after {attempts} attempts: {reason}"))
            return
        if entry.committed is not None and entry.tries <= settings.quick_retries:
            due = now + full_jitter(settings.quick_wait, settings.longest_wait, entry.tries, self._chance())
            if due + settings.confirm_timeout.total_seconds() <= entry.deadline:
                outcome.again.append((due, entry))
                return
        failures = attempts - settings.quick_retries
        wait = full_jitter(settings.retry_wait, settings.longest_wait, failures, self._chance())
        outcome.unpublished.append(Unpublished(entry, "pending", wait, reason))
