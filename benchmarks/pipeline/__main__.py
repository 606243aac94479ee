"""How fast a pipeline reads, delivers and applies, how late it is, and how much memory a backlog takes.

Four parts, each on servers of its own: `noop` reads the WAL to a sink that does nothing, against `pg_recvlogical`; `latency`
is from a commit to the row in another database; `apply` compares with PostgreSQL's own logical replication; `memory` drains
a backlog. What is compared runs in turns, and a ratio is the median of the turns' ratios.
"""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.pipeline import apply, latency, memory, noop_sink
from benchmarks.report import Bar, Output, parse_arguments, report

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "noop": noop_sink.measure,
    "latency": latency.measure,
    "apply": apply.measure,
    "memory": memory.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("pipeline", quick, output.figures, bars)


if __name__ == "__main__":
    main()
