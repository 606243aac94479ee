"""What is shown while the demo runs, on standard error: one screen that changes on a terminal, else a line now and then."""

import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headwater.cli.output import human_bytes
from headwater.model import Op

# The kinds of change, as people call them, in the order of the columns.
KINDS: Final[Mapping[Op, str]] = {
    Op.INSERT: "inserts",
    Op.UPDATE: "updates",
    Op.UPDATE_KEY: "key changes",
    Op.DELETE: "deletes",
    Op.TRUNCATE: "truncates",
}
_FRAMES_PER_SECOND = 8
_BAR_WIDTH = 40
_LINE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: changes written by table and kind, delivered by table; the lag is in seconds, and in bytes of WAL."""

    written: Counter[tuple[str, Op]] = field(default_factory=Counter)
    delivered: Mapping[str, int] = field(default_factory=dict)
    rate: float = 0.0
    lag: float = 0.0
    behind: int = 0
    is_loading: bool = False
    is_written: bool = False

    @property
    def phase(self) -> str:
        if self.is_written:
            return "all is written; delivering the rest"
        return "mixed traffic, and a transaction of 100,000 rows" if self.is_loading else "mixed traffic"


class View(Protocol):
    """Where progress goes, for the length of a `with` block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def step(self, text: str) -> None:
        """Say what is being done now."""

    def begin(self, seconds: float) -> None:
        """The traffic begins, and lasts so long."""

    def show(self, progress: Progress) -> None:
        """Show how far it is."""


def choose_view() -> View:
    return LiveView() if sys.stderr.isatty() else LineView()


class LineView:
    """Plain lines, for pipes and logs."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def step(self, text: str) -> None:
        typer.echo(f"{time.monotonic() - self._started:5.1f} s  {text}", err=True)

    def begin(self, seconds: float) -> None:
        self.step(f"writing for {seconds:g} s, and delivering")

    def show(self, progress: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            self.step(f"{progress.phase}: {summary(progress)}")


class LiveView:
    """A table that is drawn again several times a second, from a thread of its own, also while the demo waits."""

    def __init__(self) -> None:
        self._spinner = Spinner("dots", style="cyan")
        self._progress: Progress | None = None
        self._began, self._seconds = 0.0, 0.0
        self._live = Live(
            console=Console(stderr=True, highlight=False),
            get_renderable=self._render,
            refresh_per_second=_FRAMES_PER_SECOND,
            # The report on the same screen says it all again.
            transient=sys.stdout.isatty(),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def step(self, text: str) -> None:
        self._spinner.update(text=text)

    def begin(self, seconds: float) -> None:
        self._began, self._seconds, self._progress = time.monotonic(), seconds, Progress()

    def show(self, progress: Progress) -> None:
        self._progress = progress
        self.step(progress.phase)

    def _render(self) -> RenderableType:
        head = Text.assemble(("Headwater", "bold cyan"), "  moves what happens in PostgreSQL to a second database, by NATS")
        if self._progress is None:
            return Padding(Group(head, "", self._spinner), (1, 2))
        progress = self._progress
        parts = (head, "", operations_table(progress), "", summary(progress), "", self._bar(), self._spinner)
        return Padding(Group(*parts), (1, 2))

    def _bar(self) -> RenderableType:
        elapsed = min(time.monotonic() - self._began, self._seconds)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._seconds, completed=elapsed, width=_BAR_WIDTH),
            f"{elapsed:.1f} of {self._seconds:g} s",
        )
        return bar


def operations_table(progress: Progress) -> Table:
    """Each table with what was written to it, and how many changes of it were delivered."""
    table = columns("table", *KINDS.values(), "delivered")
    for name in sorted({name for name, _ in progress.written}):
        delivered = Text(number(progress.delivered.get(name, 0)), style="cyan")
        table.add_row(name, *(number(progress.written[name, op]) for op in KINDS), delivered)
    return table


def columns(first: str, *numbers: str) -> Table:
    """A table without lines: names on the left, and numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, min_width=10)
    for name in numbers:
        table.add_column(name, justify="right", min_width=8)
    return table


def number(count: int) -> str:
    """With thousands set apart; none at all hardly shows."""
    return f"{count:,}" if count else "-"


def summary(progress: Progress) -> str:
    """The figures that are not a table's."""
    return (
        f"{progress.written.total():,} changes written, {sum(progress.delivered.values()):,} delivered, "
        f"{progress.rate:,.0f} rows/s, lag {progress.lag:.1f} s, {human_bytes(progress.behind)}"
    )
