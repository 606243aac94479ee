"""A connection of a line, by which members of groups read, commit and renew their leases."""

from datetime import timedelta
from typing import Final

import psycopg

from headwater.errors import HeadwaterError, LeaseLost, TopicError
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.session import PreparedSession
from headwater.topics.topic import no_topics

# What topic_settle_1 raises.
_EPOCH_PASSED: Final = "HW004"


class GroupSession(PreparedSession):
    """Frames come as they are; a commit that is refused because of its epoch is LeaseLost."""

    _tables, _own_error = "topics", TopicError

    def __init__(self, url: str, answer_within: timedelta, *, prepares: bool) -> None:
        super().__init__(url, "headwater subscriber", answer_within)
        self.prepares = prepares

    def _missing(self) -> HeadwaterError:
        return no_topics()

    async def _translated(self, error: psycopg.Error, connection: AsyncConnection) -> Exception:
        return lease_lost(error) or await super()._translated(error, connection)


def lease_lost(error: psycopg.Error) -> LeaseLost | None:
    """The error for a commit that was refused because of its epoch."""
    if error.sqlstate != _EPOCH_PASSED:
        return None
    return LeaseLost(
        "somebody else reads there by now, or what came before was not committed; nothing moved, and it is given out again"
    )
