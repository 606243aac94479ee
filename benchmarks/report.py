"""The common end of all benchmarks.

Figures are what was measured; a bar is a figure with a bound. Both go to stderr as tables, for people, and to stdout as
one line of JSON, for programs. A missed bar is shown as missed; it is not a failure of the run.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

Figure = float | str


@dataclass(frozen=True, slots=True)
class Output:
    """Progress for people, on stderr, and figures for the report."""

    console: Console = field(default_factory=lambda: Console(stderr=True))
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured value with exactly one bound. A value that could not be measured is NaN, which keeps no bound."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"bar {self.name!r} needs exactly one of at_least and at_most")

    @property
    def ok(self) -> bool:
        reaches = self.at_least is None or self.value >= self.at_least
        stays_below = self.at_most is None or self.value <= self.at_most
        return bool(reaches and stays_below)

    @property
    def bound(self) -> tuple[str, float]:
        """The bound by its name in the JSON line."""
        return ("at_least", self.at_least) if self.at_least is not None else ("at_most", self.at_most or 0.0)


def wants_quick(arguments: Sequence[str] | None = None) -> bool:
    """Whether the command line asks for the short form; anything else on it is refused."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a short run that shows the benchmark works")
    return bool(parser.parse_args(arguments).quick)


def parse_arguments(parts: Iterable[str], arguments: Sequence[str] | None = None) -> tuple[bool, Sequence[str]]:
    """Whether the short form is wanted, and which of the parts to measure."""
    names = list(parts)
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a short run that shows the benchmark works")
    parser.add_argument("--only", choices=names, help="measure this part alone")
    found = parser.parse_args(arguments)
    return found.quick, [found.only] if found.only else names


def report(bench: str, quick: bool, figures: Mapping[str, Figure], bars: Sequence[Bar]) -> None:
    """Print the tables to stderr and the line of JSON to stdout: nothing may be printed after it."""
    console = Console(stderr=True)
    console.print(_table_of_figures(bench, quick, figures))
    console.print(_table_of_bars(bars))
    sys.stdout.write(as_json_line(bench, quick, figures, bars) + "\n")
    sys.stdout.flush()


def as_json_line(bench: str, quick: bool, figures: Mapping[str, Figure], bars: Sequence[Bar]) -> str:
    line = {
        "bench": bench,
        "quick": quick,
        "figures": {name: _plain(value) for name, value in figures.items()},
        "bars": [
            {"name": bar.name, "value": _plain(bar.value), bar.bound[0]: _plain(bar.bound[1]), "ok": bar.ok} for bar in bars
        ],
    }
    return json.dumps(line, allow_nan=False)


def _plain(value: Figure) -> Figure | None:
    """What JSON can carry: numpy's numbers as Python's, and null for what is not a number."""
    if isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _table_of_figures(bench: str, quick: bool, figures: Mapping[str, Figure]) -> Table:
    table = Table("figure", title=f"{bench} (quick)" if quick else bench)
    table.add_column("measured", justify="right")
    for name, value in figures.items():
        table.add_row(name, _readable(value))
    return table


def _table_of_bars(bars: Sequence[Bar]) -> Table:
    table = Table("bar")
    table.add_column("measured", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    for bar in bars:
        kind, bound = bar.bound
        outcome = "[green]kept[/]" if bar.ok else "[bold red]MISSED[/]"
        table.add_row(bar.name, _readable(bar.value), f"{kind.replace('_', ' ')} {_readable(bound)}", outcome)
    return table


def _readable(value: Figure) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
