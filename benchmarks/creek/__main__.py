"""How fast changes become messages of the Creek wire, and messages become changes again, and how late they are.

Seven parts, each on servers of its own: `avro` encodes changes; `wal` brings a backlog to JetStream, against our own
publisher with ready bytes; `client` reads a stream and decodes it, against bare nats-py; `source` reads one by Spark;
`snapshot` asks a producer for a whole table; `apply` brings a stream into PostgreSQL; `latency` is from a commit to the
client. What is compared runs in turns, and a ratio is the median of the turns' ratios. Rows are about 200 bytes.
"""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.creek import apply, avro, client, latency, snapshot, source, wal
from benchmarks.report import Bar, Output, parse_arguments, report

PARTS: Final[Mapping[str, Callable[[bool, Output], list[Bar]]]] = {
    "avro": avro.measure,
    "wal": wal.measure,
    "client": client.measure,
    "source": source.measure,
    "snapshot": snapshot.measure,
    "apply": apply.measure,
    "latency": latency.measure,
}


def main() -> None:
    quick, parts = parse_arguments(PARTS)
    output = Output()
    bars = [bar for part in parts for bar in PARTS[part](quick, output)]
    report("creek", quick, output.figures, bars)


if __name__ == "__main__":
    main()
