"""How fast an outbox is relayed from the WAL to a broker, and from its table when the slot was lost.

Three parts, each on servers of its own: `stream` brings a backlog to JetStream, against the reference system, one event at a
time; `broker` compares the relay with what the broker takes from our own publisher alone; `recovery` reads the table after
the slot was dropped, against the reference. What is compared runs in turns, and a ratio is the median of the turns' ratios.
Payloads are 1 KiB of JSON.
"""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.outbox_wal import broker, recovery, stream
from benchmarks.report import Bar, Output, parse_arguments, report

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "stream": stream.measure,
    "broker": broker.measure,
    "recovery": recovery.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("outbox_wal", quick, output.figures, bars)


if __name__ == "__main__":
    main()
