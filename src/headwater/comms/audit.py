"""What became of every attempt, written down before its job is settled; who has a message already, and who never will.

A message is on record as sent before its job is marked as done. So one whose mark was lost, by a crash or by a lease that
ended, is not sent again: only what was sent and not yet on record may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headwater.comms.gather import Gather
from headwater.comms.outcome import Refused, Verdict
from headwater.comms.session import CommsSession
from headwater.comms.statements import Attempt, Earlier, find_earlier, note_attempts

# As long as a server that is restarted takes, and less than a provider's patience.
_INSIST: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Past:
    """Whom earlier attempts have brought a message, and who was refused for good."""

    accepted: frozenset[str]
    refused: tuple[Refused, ...]


class Audit:
    """Reads and writes for many tasks at once, over one connection."""

    def __init__(self, url: str, answer_within: timedelta) -> None:
        self._session = CommsSession(url, "headwater comms audit", answer_within)
        self._notes = Gather(self._note)
        self._questions = Gather(self._find)

    async def note(self, attempt: Attempt) -> None:
        """Durable on return; raises ConnectionLost when the database is away for long."""
        await self._notes.ask(attempt)

    async def past(self, job_id: int, attempt: int) -> Past:
        """What is known of a message that is to be tried for the `attempt`th time."""
        return past_of(await self._questions.ask(job_id), attempt)

    async def close(self) -> None:
        await self._notes.finish()
        await self._questions.finish()
        await self._session.close()

    async def _note(self, attempts: Sequence[Attempt]) -> Sequence[None]:
        await self._session.insist(note_attempts(attempts), _INSIST)
        return [None] * len(attempts)

    async def _find(self, job_ids: Sequence[int]) -> Sequence[Sequence[Earlier]]:
        found: dict[int, list[Earlier]] = {}
        for row in await self._session.insist(find_earlier(job_ids), _INSIST):
            found.setdefault(row.job_id, []).append(row)
        return [found.get(job_id, []) for job_id in job_ids]


def past_of(earlier: Sequence[Earlier], attempt: int) -> Past:
    """The last attempt names all who were refused for good, until the job is given up: who retries it means them, too."""
    accepted = frozenset(address for row in earlier for address in row.accepted)
    last = next((row for row in reversed(earlier) if row.refused), None)
    # A job that is retried counts its attempts anew.
    if last is None or last.outcome == Verdict.PERMANENT or last.attempt >= attempt:
        return Past(accepted, ())
    refused = [Refused(**one) for one in last.refused]
    return Past(accepted, tuple(one for one in refused if one.is_permanent))
