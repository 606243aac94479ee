"""A batch: messages that were given out together, and are committed together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from headwater.errors import TopicError
from headwater.postgres.statements import Statement, fetch, fetch_sync
from headwater.topics.group_session import lease_lost
from headwater.topics.message import Message
from headwater.topics.topic import require_async, require_sync
from headwater.topics.window import Part


@dataclass(frozen=True, slots=True, eq=False)
class Doubt:
    """A commit in a transaction of the caller: only when that has ended can be known what became of it."""

    parts: Sequence[Part]
    connection: psycopg.BaseConnection[Any]

    @property
    def has_ended(self) -> bool:
        return self.connection.closed or self.connection.info.transaction_status == TransactionStatus.IDLE


class Giver(Protocol):
    """Who has given a batch out, and hears what became of it."""

    async def commit(self, parts: Sequence[Part]) -> None: ...

    async def bury(self, message: Message, part: Part, reason: str) -> None: ...

    def committing(self, parts: Sequence[Part]) -> Statement[bool]:
        """To be run in a transaction of the caller."""

    def doubted(self, doubt: Doubt) -> None:
        """It was, and that transaction has not ended."""

    def refused(self) -> None: ...


class Batch:
    """Messages in the order of their partitions and offsets; `parts` say which, and under which epoch each was given out."""

    def __init__(self, parts: Sequence[Part], giver: Giver, *, is_committed: bool = False) -> None:
        self.parts = parts
        self._giver, self._is_committed = giver, is_committed

    @cached_property
    def messages(self) -> list[Message]:
        return [message for part in self.parts for message in part.messages()]

    def __len__(self) -> int:
        return sum(len(part.offsets) for part in self.parts)

    async def commit(self, connection: psycopg.AsyncConnection[Any] | None = None) -> None:
        """The group has dealt with all up to the end of this batch, or LeaseLost is raised, and nothing moves.

        With a connection it is so if its transaction commits: what else was done there has its effect exactly once. What
        came before has to be committed too then, and LeaseLost is an error of that transaction, which can only be rolled
        back. What is delivered at most once is committed already.
        """
        if self._is_committed:
            return
        if connection is None:
            await self._giver.commit(self.parts)
            return
        require_async(connection, "commit")
        statement = self._committing(connection)
        try:
            await fetch(connection, statement)
        except psycopg.Error as exc:
            self._refused(exc)
            raise
        finally:
            self._giver.doubted(Doubt(self.parts, connection))

    def commit_sync(self, connection: psycopg.Connection[Any]) -> None:
        """`commit` for a connection that is not async."""
        if self._is_committed:
            return
        require_sync(connection, "commit")
        statement = self._committing(connection)
        try:
            fetch_sync(connection, statement)
        except psycopg.Error as exc:
            self._refused(exc)
            raise
        finally:
            self._giver.doubted(Doubt(self.parts, connection))

    async def dead(self, message: Message, reason: str) -> None:
        """Put a message of this batch aside as a dead letter, and go on: a commit of the batch is still to come."""
        for part in self.parts:
            if part.partition == message.partition and message.offset in part.offsets:
                await self._giver.bury(message, part, str(reason))
                return
        raise TopicError(f"message {message.offset} of partition {message.partition} is not of this batch; give one that is")

    def _committing(self, connection: psycopg.BaseConnection[Any]) -> Statement[bool]:
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise TopicError(
                "a batch is committed together with what else its transaction does, and the connection has none; open one "
                "with `connection.transaction()`, or commit without a connection"
            )
        return self._giver.committing(self.parts)

    def _refused(self, error: psycopg.Error) -> None:
        if (lost := lease_lost(error)) is not None:
            self._giver.refused()
            raise lost from error
