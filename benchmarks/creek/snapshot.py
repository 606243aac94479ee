"""A table asked for over NATS, by one request to a running producer: from the request to the end of the snapshot.

Nobody reads it meanwhile. What is counted are the messages of its topic in the stream: a header, the rows, and the end. The
first snapshot does not count.
"""

import statistics
import time
from contextlib import closing
from dataclasses import dataclass

from benchmarks.creek import statements
from benchmarks.creek.producer import producing, wait_until
from benchmarks.creek.testbed import (
    DATABASE,
    NAME,
    SCHEMA,
    Stored,
    Testbed,
    count_stored,
    last_stored,
    start_testbed,
    subject_of,
)
from benchmarks.pipeline_process import PipelineProcess
from benchmarks.report import Bar, Output
from benchmarks.wal_bench import SERVER
from headwater.brokers.nats import Link, stream_info
from headwater.creek.framing import packets
from headwater.creek.messages import EOF, SnapshotRequest
from headwater.creek.names import Kind, Names
from headwater.postgres.statements import execute_sync

AIM = 100_000
# Packets of a message that is smaller than this are one.
_END = packets(EOF, 1000)[0]


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 1_000_000
    rounds: int = 3


QUICK = Sizes(rows=100_000, rounds=2)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, SERVER) as testbed:
        with output.console.status(f"filling a table of {sizes.rows:,} rows"):
            execute_sync(testbed.bench.connection, statements.fill_orders(sizes.rows - 1))
            execute_sync(testbed.bench.connection, statements.vacuum_orders())
        names, seconds = testbed.fresh_names(), []
        with producing(testbed, names) as run, closing(testbed.link()) as link:
            with output.console.status("starting the producer, and a first snapshot"):
                wait_for_producer(testbed, link, names, run, sizes.rows)
                seconds_of(link, names, run, sizes.rows)
            for turn in range(sizes.rounds):
                with output.console.status(f"a snapshot of {sizes.rows:,} rows, turn {turn + 1} of {sizes.rounds}"):
                    seconds.append(seconds_of(link, names, run, sizes.rows))
            run.stop()
    output.figures["snapshot_rows"] = sizes.rows
    output.figures["snapshot_aim"] = AIM
    output.figures["snapshot_seconds"] = round(statistics.median(seconds), 2)
    return [Bar("snapshot_rows_per_s", round(sizes.rows / statistics.median(seconds)), at_least=40_000)]


def wait_for_producer(testbed: Testbed, link: Link, names: Names, run: PipelineProcess, last: int) -> None:
    """Requests are answered before its query runs. So the table's last row is written now, and waited for in the stream."""
    wait_until(lambda: stream_info(link, names.stream(Kind.WAL)) is not None, "its stream", run)
    execute_sync(testbed.bench.connection, statements.write_order(last))
    wait_until(lambda: count_stored(link, names.stream(Kind.WAL), subject_of(names)) == 1, "the row in the stream", run)


def seconds_of(link: Link, names: Names, run: PipelineProcess, rows: int) -> float:
    """One snapshot; all of it is in the stream afterwards."""
    began, topic = ask(link, names)
    stream = names.stream(Kind.SNAPSHOT)

    def last() -> Stored:
        return last_stored(link, stream, topic) or Stored(b"", 0.0)

    wait_until(lambda: last().payload == _END, f"the end of {topic}", run)
    found = count_stored(link, stream, topic) - 2
    assert found == rows, f"the snapshot has {found} of {rows} rows"
    return last().at - began


def ask(link: Link, names: Names) -> tuple[float, str]:
    """Ask for the table; when that was, in seconds of Unix time, and the topic."""
    began = time.time()
    topic = link.request(names.snapshot_requests[0], SnapshotRequest(DATABASE, SCHEMA, NAME).to_json()).decode()
    assert topic.startswith(names.snapshot(SCHEMA, NAME, "")), f"the producer refused: {topic}"
    return began, topic
