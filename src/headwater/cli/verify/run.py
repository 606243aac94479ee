"""The comparison of a pipeline's source with one of its sinks, each side in one snapshot.

The two snapshots are not of the same moment. The target's is taken when all that the source's shows is delivered, so the
target can only be ahead; keys that differ are then looked at again, until it is clear whether they do.

Imports Spark's package, so it is imported where that is known to be there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headwater.cli.session import session
from headwater.cli.verify.choice import Choice, choose_tables, known_tables
from headwater.cli.verify.delivery import Delivery
from headwater.cli.verify.result import SinkResult, TableResult
from headwater.postgres.catalog import Table, list_tables
from headwater.postgres.comparison import (
    Incomparable,
    Pair,
    Side,
    Sides,
    compare_table,
    describe,
    look_again,
    pair_tables,
)
from headwater.spark.settings import PipelineSettings, PostgresSinkSettings

# Told what is being done, and how far it is: tables that are done, and all.
Step = Callable[[str, int, int], None]


def verify_sink(
    pipeline: PipelineSettings, sink: PostgresSinkSettings, patterns: Sequence[str], limit: int, step: Step
) -> SinkResult:
    """Compare tables of the pipeline, by default all; at most `limit` differences of each kind are listed per table."""
    source_url = pipeline.source.url
    with session(source_url) as source, session(sink.url) as target, session(source_url) as watching:
        choice = choose_tables(list_tables(source), pipeline, known_tables(pipeline), patterns)
        counterparts = {(table.schema, table.name): table for table in list_tables(target)}
        sides = (Side("source", source_url, source), Side("target", sink.url, target))
        for side in sides:
            side.prepare()
        delivery = Delivery(watching, pipeline.source.slot)
        step("waiting for the pipeline to catch up", 0, len(choice.tables))
        is_running = delivery.is_running
        before = sides[0].begin()
        has_caught_up = is_running and delivery.catch_up()
        after = sides[1].begin()
        comparison = _Comparison(sides, limit, step, recodes=before.encoding != after.encoding)
        settle = delivery.catch_up if has_caught_up else None
        results = comparison.run(choice, counterparts, settle)
    return SinkResult(sink.name, before, after, is_running, has_caught_up, results)


class _Comparison:
    """Tables compared one after the other in the same two snapshots, then looked at again outside of them."""

    def __init__(self, sides: Sides, limit: int, step: Step, *, recodes: bool) -> None:
        self._sides, self._limit, self._step, self._recodes = sides, limit, step, recodes

    def run(
        self, choice: Choice, counterparts: dict[tuple[str, str], Table], settle: Callable[[], bool] | None
    ) -> list[TableResult]:
        """Without `settle` the target follows nobody, and the first look is the last."""
        results, pairs = [TableResult(name, error=reason) for name, reason in choice.refused.items()], dict[str, Pair]()
        for number, table in enumerate(choice.tables):
            self._step(f"comparing {table}", number, len(choice.tables))
            counterpart = counterparts.get((table.schema, table.name))
            if counterpart is None:
                reason = "it is missing in the target; run the pipeline, which makes it, or create it"
                results.append(TableResult(str(table), error=reason))
                continue
            try:
                pairs[str(table)] = pair_tables(self._sides, table, counterpart, recodes=self._recodes)
                results.append(self._compare(pairs[str(table)], is_last_look=settle is None))
            except Incomparable as exc:
                results.append(TableResult(str(table), error=str(exc)))
        for side in self._sides:
            side.end()
        if settle is not None:
            results = [self._again(result, pairs, settle) for result in results]
        return sorted(results, key=lambda result: result.table)

    def _compare(self, pair: Pair, *, is_last_look: bool) -> TableResult:
        compared = compare_table(self._sides, pair)
        findings = describe(self._sides, pair, compared.differences, self._limit) if is_last_look else []
        return TableResult(str(pair.table), compared, pair.layout, findings)

    def _again(self, result: TableResult, pairs: dict[str, Pair], settle: Callable[[], bool]) -> TableResult:
        if result.compared is None or not result.compared.differences:
            return result
        pair = pairs[result.table]
        self._step(f"looking again at {len(result.compared.differences):,} keys of {result.table}", 1, 1)
        try:
            compared = look_again(self._sides, pair, result.compared, settle)
            findings = describe(self._sides, pair, compared.differences, self._limit)
            return replace(result, compared=compared, findings=findings)
        except Incomparable as exc:
            return TableResult(result.table, error=str(exc))
