"""The report for people, on standard output: the same text on a terminal and in a pipe, colours aside."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headwater.cli.demo.report import Report, Server, TableReport
from headwater.cli.demo.view import KINDS, columns, number
from headwater.cli.output import human_bytes

# Room for the widest table, where no terminal says how wide it is.
_PIPE_WIDTH = 110

_NEXT: Final = (
    ("headwater check 'public.*' --url URL", "see whether a database is fit for it"),
    ("headwater tail 'public.*' --url URL", "follow its changes as they come"),
    ("headwater init", "write a pipeline of your own, for `headwater run`"),
    ("headwater demo --seconds 60", "again, for longer, or with --url URL"),
    ("docs/quickstart.md", "read how to go on"),
)


def print_report(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        for part in _parts(report):
            console.print(Padding(part, (1, 2, 0, 2)))
    # Tables fill their lines up with blanks, which nobody wants in a file.
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _parts(report: Report) -> Iterator[Text | Table]:
    yield Text.assemble(
        ("Headwater", "bold cyan"),
        f"  delivered {report.changes:,} changes of {report.transactions:,} transactions through NATS to a second database",
    )
    yield _written(report.tables)
    yield _compared(report.tables)
    yield _facts(report)
    yield _verdict(report)
    yield _next()


def _written(tables: Sequence[TableReport]) -> Table:
    shown = columns("written", *KINDS.values(), "delivered")
    for table in tables:
        shown.add_row(table.name, *(number(table.written[op]) for op in KINDS), number(table.delivered))
    return shown


def _compared(tables: Sequence[TableReport]) -> Table:
    shown = columns("row by row", "equal", "missing", "extra", "different")
    for table in tables:
        rows = table.comparison
        shown.add_row(table.name, number(rows.equal), *map(_wrong, (rows.missing, rows.extra, rows.different)))
    return shown


def _facts(report: Report) -> Table:
    undone = report.rolled_back
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_row("server", f"PostgreSQL {report.server.version}, {_place(report.server)}")
    facts.add_row(
        "rolled back",
        f"{undone['transactions']:,} transactions, {undone['savepoints']:,} savepoints, {undone['rows']:,} rows"
        f"{'; none delivered' if report.is_equal else ''}",
    )
    facts.add_row(
        "large transaction",
        f"{report.large.rows:,} rows, in the target {report.large.seconds:.1f} s after the commit: "
        f"{report.large.per_second:,.0f} rows/s",
    )
    facts.add_row("rate", f"{report.rows_per_second:,.0f} rows/s on average, all traffic taken together")
    facts.add_row(
        "lag",
        f"median {_time(report.lag.median)}, 99 % within {_time(report.lag.p99)}, at most {_time(report.lag.largest)}",
    )
    facts.add_row(
        "WAL",
        f"{human_bytes(report.wal.written)} written, {human_bytes(report.wal.unconfirmed)} unconfirmed, "
        f"up to {human_bytes(report.wal.peak_retained)} kept for the slot",
    )
    events = report.events
    facts.add_row(
        "outbox",
        f"{events.committed:,} events committed, {events.while_away:,} of them while NATS was dead for "
        f"{_time(events.away_seconds)}; {events.arrived:,} arrived, {events.lost:,} lost, {events.repeated:,} repeated",
    )
    for group in report.topic.groups:
        shares = " and ".join(f"{count:,}" for count in group.members.values())
        facts.add_row(
            f"topic, group {group.name}",
            f"{report.topic.appended:,} messages, {shares} by its two members; {group.lost:,} lost, "
            f"{group.repeated:,} repeated, {group.out_of_order:,} out of order",
        )
    facts.add_row("took", f"{report.seconds:.1f} s, all in")
    return facts


def _place(server: Server) -> str:
    return "private, stopped and removed again" if server.is_private else server.name


def _verdict(report: Report) -> Text:
    if report.is_equal:
        rows = sum(table.comparison.equal for table in report.tables)
        text = f"All {rows:,} rows of {len(report.tables)} tables are equal in source and target"
        return Text(f"{text}, and no event or message was lost.", style="bold green")
    return Text("\n".join(["Something was lost or changed on the way:", *report.differences]), style="bold red")


def _next() -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("try next", style="cyan", no_wrap=True)
    shown.add_column("")
    for command, what in _NEXT:
        shown.add_row(command, what)
    return shown


def _wrong(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
