"""The SQL of the parts: statements with their parameters and rows named."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, cast

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.queue")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of pgmq."""

    msg_id: int
    message: Any


@dataclass(frozen=True, slots=True)
class Email:
    """What the reference claims."""

    id: int
    subject: str | None
    to_: list[str]
    cc: list[str]
    bcc: list[str]
    body: str | None


def empty_ours() -> Statement[None]:
    return SQL["empty_ours"].compose()


def count_ours() -> Statement[int]:
    return SQL["count_ours"].bind(int)


def write_history(rows: int, payload: str) -> Statement[int]:
    return SQL["write_history"].bind(int, rows=rows, payload=payload)


def count_done() -> Statement[int]:
    return SQL["count_done"].bind(int)


def read_size() -> Statement[float]:
    return SQL["read_size"].bind(float)


def empty_pgqueuer() -> Statement[None]:
    return SQL["empty_pgqueuer"].compose()


def count_pgqueuer() -> Statement[int]:
    return SQL["count_pgqueuer"].bind(int)


def empty_procrastinate() -> Statement[None]:
    return SQL["empty_procrastinate"].compose()


def count_procrastinate() -> Statement[int]:
    return SQL["count_procrastinate"].bind(int)


def create_pgmq() -> Statement[None]:
    return SQL["create_pgmq"].compose()


def empty_pgmq() -> Statement[None]:
    return SQL["empty_pgmq"].compose()


def count_pgmq() -> Statement[int]:
    return SQL["count_pgmq"].bind(int)


def read_pgmq(batch: int) -> Statement[Message]:
    return SQL["read_pgmq"].bind(Message, batch=batch)


def delete_pgmq(ids: Sequence[int]) -> Statement[int]:
    return SQL["delete_pgmq"].bind(int, ids=list(ids))


def archive_pgmq(ids: Sequence[int]) -> Statement[int]:
    return SQL["archive_pgmq"].bind(int, ids=list(ids))


def settle() -> Statement[None]:
    return SQL["settle"].compose()


def create_reference() -> Statement[None]:
    return SQL["create_reference"].compose()


@cache
def insert_emails(rows: int) -> Statement[int]:
    """To be run with as many parameters as `rows` have columns, by their numbers, as the driver of the original has them."""
    columns = 7
    values = ", ".join(
        "(" + ", ".join(f"${row * columns + column + 1}" for column in range(columns)) + ")" for row in range(rows)
    )
    query = sql.SQL(cast("Any", SQL["insert_emails"].text)).format(rows=sql.SQL(cast("Any", values)))
    return Statement("insert_emails", sql.SQL(cast("Any", query.as_string())), None, int)


def notify_emails(payload: str) -> Statement[str]:
    return SQL["notify_emails"].bind(str, payload=payload)


def listen_emails() -> Statement[None]:
    return SQL["listen_emails"].compose()


def claim_email(id: int, now: datetime) -> Statement[Email]:
    return SQL["claim_email"].bind(Email, id=id, now=now)


def claim_emails(ids: Sequence[int], now: datetime) -> Statement[Email]:
    return SQL["claim_emails"].bind(Email, ids=list(ids), now=now)


def mark_email(id: int, now: datetime) -> Statement[int]:
    return SQL["mark_email"].bind(int, id=id, now=now)


def count_emails() -> Statement[int]:
    return SQL["count_emails"].bind(int)


def trivial() -> Statement[int]:
    return SQL["trivial"].bind(int)


def read_wal() -> Statement[float]:
    return SQL["read_wal"].bind(float)


def count_transactions() -> Statement[float]:
    return SQL["count_transactions"].bind(float)


def count_backends(application_name: str) -> Statement[int]:
    return SQL["count_backends"].bind(int, application_name=application_name)


def hold() -> Statement[str]:
    return SQL["hold"].bind(str)
