"""Changes to Avro: the server's messages parsed and encoded as the wire has them, in processor time of one core."""

import statistics
import time
from dataclasses import dataclass

import pyarrow.compute as pc

from benchmarks.creek.testbed import DATABASE, encode_all, start_testbed, write_orders
from benchmarks.report import Bar, Output
from benchmarks.wal_bench import SERVER, whole_batches
from headwater.creek.names import Names

# Fast enough that encoding is no part of what a writer to JetStream waits for.
AIM = 300_000


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 300_000
    rounds: int = 5


QUICK = Sizes(rows=50_000, rounds=3)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, SERVER) as testbed, testbed.bench.loaded("avro", sizes.rows, write_orders) as load:
        batches, names, rates = whole_batches(testbed.bench.server.url, load), Names("AVRO", DATABASE), []
        with output.console.status(f"encoding {sizes.rows:,} rows"):
            for _ in range(sizes.rounds):
                started = time.process_time()
                encoded = list(encode_all(batches, names))
                rates.append(sizes.rows / (time.process_time() - started))
                rows = sum(map(len, encoded))
                assert rows == sizes.rows, f"{rows} of {sizes.rows} rows were encoded"
    size = sum(pc.sum(pc.binary_length(one.payloads)).as_py() for one in encoded) / sizes.rows
    output.figures.update({"avro_rows": sizes.rows, "avro_bytes_per_row": round(size, 1), "avro_aim": AIM})
    output.figures["avro_wal_bytes_per_row"] = round(sum(len(batch.data) for batch in batches) / sizes.rows, 1)
    return [Bar("avro_rows_per_core", round(statistics.median(rates)), at_least=150_000)]
