"""Changes applied to another database, each exactly once, although the reader crashes before it could confirm.

The position of the last change is kept in the target and committed together with the rows. What comes again after a crash
is at or before that position, and is left out. Run it with `python examples/apply_exactly_once.py`.
"""

from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

from psycopg import sql

from headwater.capture import Capture, CaptureSettings, CatalogTypes, emit_mark
from headwater.embedded import EmbeddedPostgres
from headwater.model import UNCHANGED, Change, LogicalMessage, Lsn, Op, Position, Row
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.replication import Publication, ReplicationConnection, create_slot, decode_rows, reconcile

NAME = "headwater_example"
TABLE = "create table account (id int primary key, owner text, balance numeric(10, 2), contract text)"


class Crashed(Exception):
    """Stands for a process that dies at the worst moment: all is written, nothing is confirmed."""


def main() -> None:
    with EmbeddedPostgres() as server:
        source, target = server.url, urlsplit(server.url)._replace(path="/copy").geturl()
        with connect_sync(source) as connection:
            connection.execute("create database copy")
        prepare(source, target)
        until = write(source)
        try:
            run(source, target, until, crashes=True)
        except Crashed:
            print("the reader crashed")
        run(source, target, until, crashes=False)
        print("equal" if rows(source) == rows(target) else "DIFFERENT")


def prepare(source: str, target: str) -> None:
    with connect_sync(source) as connection:
        connection.execute(TABLE)
        connection.execute("alter table account alter contract set storage external")
        reconcile(connection, Publication(name=NAME, tables=("account",)))
    with ReplicationConnection(source) as replication:
        create_slot(replication, NAME)
    with connect_sync(target) as connection:
        connection.execute(TABLE)
        connection.execute("create table applied (commit_lsn pg_lsn, ordinal int)")
        connection.execute("insert into applied values ('0/0', -1)")


def write(source: str) -> Lsn:
    with connect_sync(source) as connection:
        connection.execute("insert into account select n, 'owner ' || n, 0, repeat('x', 4000) from generate_series(1, 9) n")
        connection.execute("update account set balance = balance + 10 where id <= 4")
        connection.execute("update account set id = 90 where id = 9")
        connection.execute("delete from account where id = 8")
        return emit_mark(connection)


def run(source: str, target: str, until: Lsn, *, crashes: bool) -> None:
    """Apply all that committed before `until`."""
    settings, types = CaptureSettings(url=source, slot=NAME, publications=(NAME,)), CatalogTypes(source)
    with Capture(settings) as capture, connect_sync(target) as connection:
        for batch in capture:
            applied, left_out = apply(connection, decode_rows(batch, types.of(batch)))
            print(f"applied {applied} changes, left out {left_out}")
            if crashes:
                raise Crashed
            if batch.end is not None:
                capture.confirm(batch.end)
                if batch.end >= until:
                    return


def apply(connection: Connection, changes: Iterable[Change | LogicalMessage]) -> tuple[int, int]:
    """Write what is new, and how far we are, in one transaction."""
    applied = left_out = 0
    with connection.transaction():
        row = connection.execute("select commit_lsn, ordinal from applied for update").fetchone()
        last = Position(*row) if row else Position(Lsn(0), -1)
        for change in changes:
            if not isinstance(change, Change):
                continue
            if change.position <= last:
                left_out += 1
            else:
                connection.execute(statement(change))
                last, applied = change.position, applied + 1
        connection.execute("update applied set commit_lsn = %s, ordinal = %s", last)
    return applied, left_out


def statement(change: Change) -> sql.Composed:
    """What the change means for the target. A column that was not sent keeps its value there: it is not NULL."""
    table, sent = sql.Identifier(change.table), {k: v for k, v in (change.after or {}).items() if v is not UNCHANGED}
    match change.op:
        case Op.INSERT:
            names = sql.SQL(", ").join(map(sql.Identifier, sent))
            values = sql.SQL(", ").join(map(sql.Literal, sent.values()))
            return sql.SQL("insert into {} ({}) values ({})").format(table, names, values)
        case Op.UPDATE | Op.UPDATE_KEY:
            return sql.SQL("update {} set {} where {}").format(table, pairs(sent, ", "), pairs(change.key or {}, " and "))
        case Op.DELETE:
            return sql.SQL("delete from {} where {}").format(table, pairs(change.key or {}, " and "))
        case _:
            return sql.SQL("truncate {}").format(table)


def pairs(values: Row, separator: Literal[", ", " and "]) -> sql.Composed:
    parts = (sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in values.items())
    return sql.SQL(separator).join(parts)


def rows(url: str) -> list[tuple[object, ...]]:
    with connect_sync(url) as connection:
        return connection.execute("select * from account order by id").fetchall()


if __name__ == "__main__":
    main()
