"""How fast a pipeline reads, delivers and applies, how late it is, and how much memory a backlog takes.

Four parts, each on servers of its own: `noop` reads the WAL to a sink that does nothing, against `pg_recvlogical`; `latency`
is from a commit to the row in another database; `apply` compares with PostgreSQL's own logical replication; `memory` drains
a backlog. What is compared runs in turns, and a ratio is the median of the turns' ratios.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.pipelines import apply, latency, memory, noop
from benchmarks.pipelines.output import Output
from benchmarks.report import Bar, report

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "noop": noop.measure,
    "latency": latency.measure,
    "apply": apply.measure,
    "memory": memory.measure,
}


def main() -> None:
    quick, parts = parse_arguments()
    output = Output()
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("pipeline", quick, output.figures, bars)


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[bool, Sequence[str]]:
    """Whether the short form is wanted, and the parts to measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a short run that shows the benchmark works")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    found = parser.parse_args(arguments)
    return found.quick, [found.only] if found.only else list(PARTS)


if __name__ == "__main__":
    main()
