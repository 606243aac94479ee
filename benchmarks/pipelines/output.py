"""Where a part of the benchmark shows that it goes on, and puts what it measured beside its bars."""

from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.report import Figure


@dataclass(frozen=True, slots=True)
class Output:
    """Progress for people, on stderr, and figures for the report."""

    console: Console = field(default_factory=lambda: Console(stderr=True))
    figures: dict[str, Figure] = field(default_factory=dict)
