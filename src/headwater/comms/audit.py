"""What became of every attempt, written down before its job is settled; and who has a message already.

A message is on record as sent before its job is marked as done. So one whose mark was lost, by a crash or by a lease that
ended, is not sent again: only what was sent and not yet on record may be.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from headwater.comms.gather import Gather
from headwater.comms.session import CommsSession
from headwater.comms.statements import Attempt, find_accepted, note_attempts

# As long as a server that is restarted takes, and less than a provider's patience.
_INSIST: Final = timedelta(seconds=30)


class Audit:
    """Reads and writes for many tasks at once, over one connection."""

    def __init__(self, url: str, answer_within: timedelta) -> None:
        self._session = CommsSession(url, "headwater comms audit", answer_within)
        self._notes = Gather(self._note)
        self._questions = Gather(self._find)

    async def note(self, attempt: Attempt) -> None:
        """Durable on return; raises ConnectionLost when the database is away for long."""
        await self._notes.ask(attempt)

    async def accepted(self, job_id: int) -> frozenset[str]:
        """Whom earlier attempts have brought the message."""
        return await self._questions.ask(job_id)

    async def close(self) -> None:
        await self._notes.finish()
        await self._questions.finish()
        await self._session.close()

    async def _note(self, attempts: Sequence[Attempt]) -> Sequence[None]:
        await self._session.insist(note_attempts(attempts), _INSIST)
        return [None] * len(attempts)

    async def _find(self, job_ids: Sequence[int]) -> Sequence[frozenset[str]]:
        found: dict[int, set[str]] = {}
        for row in await self._session.insist(find_accepted(job_ids), _INSIST):
            found.setdefault(row.job_id, set()).update(row.accepted)
        return [frozenset(found.get(job_id, ())) for job_id in job_ids]
