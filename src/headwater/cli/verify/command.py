"""The command: compare with every PostgreSQL sink, and print what was found."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headwater.cli.config import File, Json
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import load_pipeline
from headwater.cli.verify.result import SinkResult, TableResult, as_json, verdict
from headwater.postgres.comparison import Finding

if TYPE_CHECKING:
    from headwater.cli.verify.run import Step

_COLUMNS = ("table", "source rows", "target rows", "missing", "extra", "different", "")
_WORDS = {"missing": "is missing in the target", "extra": "is in the target only", "different": "differs"}


def verify(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="Tables of the pipeline, or patterns; by default all that it has."),
    ] = None,
    file: File = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="List so many rows of each kind and table.")
    ] = 20,
    json: Json = False,
) -> None:
    """Compare tables of a pipeline's source with those of its PostgreSQL sinks, row by row.

    Each side is read in one snapshot, at the same time, by counts and checksums; rows that differ are listed by key: missing
    in the target, in the target only, or different, with the columns. The pipeline may run meanwhile: what differs is looked
    at again until it is clear that it is not just on its way. Nothing is changed.

    The exit code is 0 if all is equal, and 1 if something differs or could not be compared.

    Examples:

        headwater verify
        headwater verify orders 'sales.*' --limit 5
        headwater verify --file pipelines/shop.toml --json
    """
    pipeline = load_pipeline(file)
    from headwater.cli.verify.choice import require_comparable
    from headwater.cli.verify.run import verify_sink

    sinks = require_comparable(pipeline)
    with _shown_progress() as step:
        results = [verify_sink(pipeline, sink, tables or [], limit, step) for sink in sinks]
    if json:
        print_json(as_json(pipeline.name, results))
    else:
        _print(results)
    if not all(result.is_equal for result in results):
        raise typer.Exit(1)


@contextmanager
def _shown_progress() -> Iterator["Step"]:
    """On a terminal, what is being done and how far it is; elsewhere nothing, for logs need no bar."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=None)
        yield lambda text, done, total: progress.update(task, description=text, completed=done, total=total)


def _print(results: Sequence[SinkResult]) -> None:
    for result in results:
        typer.echo(f"{result.said}\n")
        styles = ["" if table.is_equal else "bold red" for table in result.tables]
        print_table(_COLUMNS, [_row(table) for table in result.tables], styles)
        lines = [line for table in result.tables for line in _lines(table)]
        typer.echo("".join(f"\n{line}" for line in lines) + "\n" if lines else "")
    typer.echo(verdict(results))


def _row(result: TableResult) -> tuple[str, ...]:
    compared = result.compared
    if compared is None:
        return (result.table, "", "", "", "", "", "not compared")
    counts = (compared.counts.missing, compared.counts.extra, compared.counts.different)
    numbers = (f"{number:,}" for number in (compared.source_rows, compared.target_rows, *counts))
    return (result.table, *numbers, "equal" if result.is_equal else "not equal")


def _lines(result: TableResult) -> Iterator[str]:
    if result.error is not None:
        yield f"{result.table}: {result.error}"
    for finding in result.findings:
        yield f"{result.table} {_finding(finding)}"
    if result.compared is not None:
        counts = result.compared.counts
        left = counts.missing + counts.extra + counts.different - len(result.findings)
        if left > 0:
            yield f"{result.table}: {left:,} more rows are not equal"
    for note in result.notes:
        yield f"{result.table}: {note}"


def _finding(finding: Finding) -> str:
    key = " ".join(f"{name}={'NULL' if text is None else _printable(text)}" for name, text in finding.key.items())
    columns = f" in {', '.join(finding.columns)}" if finding.columns else ""
    return f"{key} {_WORDS[finding.kind]}{columns}"


def _printable(text: str) -> str:
    """The text without what would make a terminal do something."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
