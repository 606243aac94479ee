"""The SQL of the sink: statements with their parameters named."""

from typing import Final

from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.spark.sinks.topic")


def forget_other_pieces(pipeline: str, sink: str, attempt: str) -> Statement[None]:
    return SQL["forget_other_pieces"].bind(type(None), pipeline=pipeline, sink=sink, attempt=attempt)
