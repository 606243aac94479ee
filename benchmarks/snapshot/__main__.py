"""How fast tables are read as a whole, by Spark and into another PostgreSQL, and how fast two of them are compared.

Three parts, each on servers of its own: `jdbc` reads a table to a sink that does nothing, against Spark's own JDBC reader;
`copy` brings one into a second server, against `copy` through psql; `verify` compares two. What is compared runs in turns,
and a ratio is the median of the turns' ratios; above 1 ours is the faster one.
"""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.report import Bar, Output, parse_arguments, report
from benchmarks.snapshot import copy, jdbc, verify

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "jdbc": jdbc.measure,
    "copy": copy.measure,
    "verify": verify.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("snapshot", quick, output.figures, bars)


if __name__ == "__main__":
    main()
