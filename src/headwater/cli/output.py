"""Results on standard output: a table on a terminal, aligned text into a pipe, JSON when asked for."""

import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def write_whole(text: str) -> None:
    """Write all of a text to standard output, as UTF-8, and return when the system has it.

    With PYTHONUNBUFFERED standard output takes a part of a long text and forgets the rest without a word: when a disk gets
    full, or a signal comes while a pipe is. Whoever confirms what was printed must not use `print`.
    """
    sys.stdout.flush()
    left = memoryview(text.encode())
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def ends_in_mid_line() -> bool:
    """Whether standard output is a file whose last line has no end, as a writer leaves it whose disk was full."""
    try:
        described = os.fstat(sys.stdout.fileno())
        if not stat.S_ISREG(described.st_mode) or described.st_size == 0:
            return False
        with Path(f"/proc/self/fd/{sys.stdout.fileno()}").open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:
        return False


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Print rows under column names; on a terminal, each row in its style, if there are any."""
    if sys.stdout.isatty():
        _print_rich(columns, rows, styles or [""] * len(rows))
    else:
        _print_plain(columns, rows)


def human_bytes(size: int) -> str:
    """`1536` as `1.5 KiB`."""
    amount, unit = float(size), 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*(Text(cell) for cell in row), style=style)
    Console().print(table)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [columns, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
