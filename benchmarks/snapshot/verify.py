"""Two equal tables on two servers, compared as `headwater verify` does it: from the first connection to the result.

The rate counts the rows of one side. Both servers and the comparison share the processors of one machine.
"""

import time

from benchmarks.comparison import in_turns, rate
from benchmarks.databases import DURABLE, make_accounts
from benchmarks.report import Bar, Output
from benchmarks.snapshot.sizes import QUICK, TABLE, Sizes
from headwater.cli.verify.run import verify_sink
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes, settings = QUICK if quick else Sizes(), PostgresSettings(config=DURABLE)
    with EmbeddedPostgres(settings) as source, EmbeddedPostgres(settings) as target:
        with output.console.status(f"filling two tables of {sizes.rows:,} rows"):
            for server in (source, target):
                make_accounts(server.url, sizes.rows)
        # The first look at a table marks its pages, which is no part of a comparison.
        seconds_of(source.url, target.url, sizes.rows)
        arms = {"verify": lambda: seconds_of(source.url, target.url, sizes.rows)}
        seconds = in_turns(arms, sizes.rounds, f"comparing {sizes.rows:,} rows", output)
    return [Bar("verify_rows_per_s", rate(sizes.rows, seconds["verify"]), at_least=500_000)]


def seconds_of(source: str, target: str, rows: int) -> float:
    sink = PostgresSinkSettings(name="postgres", url=target)
    changes = ChangesSettings(url=source, tables=(TABLE,), slot="verify", publication="verify")
    pipeline = PipelineSettings(name="verify", source=changes, sinks=(sink,), checkpoint="none", state_url=source)
    began = time.perf_counter()
    result = verify_sink(pipeline, sink, [], 20, lambda _text, _done, _total: None)
    seconds = time.perf_counter() - began
    (table,) = result.tables
    assert table.is_equal and table.compared is not None and table.compared.source_rows == rows, f"found {table}"
    return seconds
