"""How far the reading of tables is: a progress bar for each on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwater.capture.tables import Name, PipelineTable, TableStore
from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect_sync, translated

if TYPE_CHECKING:
    from headwater.spark.settings import PipelineSettings

_LOOK_SECONDS = 0.5


class LoadingView:
    """Bars for the tables that are being read, with rows by the server's estimate and the time that is left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rows]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[tuple[Name, str], TaskID] = {}

    def __enter__(self) -> "LoadingView":
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, tables: Sequence[PipelineTable]) -> None:
        for table in tables:
            if table.attempt is None or not table.pieces_total:
                continue
            key = (table.key, table.attempt)
            if key not in self._tasks:
                if table.state != "wanted":
                    continue
                name = f"{table.schema}.{table.name}"
                self._tasks[key] = self._progress.add_task(name, total=table.pieces_total, rows="")
            done = table.pieces_total if table.state == "streaming" else table.pieces_done
            rows = table.rows_estimate * done // table.pieces_total
            self._progress.update(
                self._tasks[key],
                completed=done,
                rows=f"{rows:,} of about {table.rows_estimate:,} rows" if table.rows_estimate else "",
                visible=table.state == "wanted",
            )


@contextmanager
def loading_shown(settings: "PipelineSettings") -> Iterator[None]:
    """Show on a terminal, while a pipeline runs, how far it is with the tables that it reads as a whole."""
    if not sys.stderr.isatty():
        yield
        return
    stopping = Event()
    thread = Thread(target=_show, args=(settings, stopping), name="loading view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(timeout=2)


def follow_loading(settings: "PipelineSettings", *, wait_for: Sequence[Name]) -> None:
    """Wait until tables have been read and delivered, showing how far it is, and what is in the way, once."""
    from headwater.spark.lease import find_holder
    from headwater.spark.state import is_paused

    store, told = TableStore(settings.state_url, settings.name), set[str]()
    if find_holder(settings.state_url, settings.name) is None:
        typer.echo(f"pipeline {settings.name} does not run; waiting until it does", err=True)
    with translated(settings.state_url), closing(connect_sync(settings.state_url)) as connection:
        if is_paused(connection, settings.name):
            typer.echo(f"pipeline {settings.name} is paused; let it go on with `headwater resume`", err=True)
    with closing(store), LoadingView(Console(stderr=True)) as view:
        while True:
            found = {table.key: table for table in store.tables()}
            view.show(list(found.values()))
            mine = [found[table] for table in wait_for if table in found]
            for table in mine:
                if table.error is not None and table.error not in told:
                    told.add(table.error)
                    view.say(f"{table.schema}.{table.name} is not read yet: {table.error}")
            if all(table.state != "wanted" for table in mine):
                return
            time.sleep(_LOOK_SECONDS)


def _show(settings: "PipelineSettings", stopping: Event) -> None:
    store = TableStore(settings.state_url, settings.name)
    with LoadingView(Console(stderr=True)) as view:
        while not stopping.wait(_LOOK_SECONDS):
            try:
                view.show(store.tables())
            except HeadwaterError:
                # The run itself says what is wrong with its database.
                store.close()
    store.close()
