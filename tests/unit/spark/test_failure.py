import pytest
from pyspark.errors import StreamingQueryException

from headwater.errors import ConnectionLost, PipelineFailed, PositionError, SinkFenced, SinkUnavailable, SlotMissing
from headwater.spark.failure import translate

PLANNER = """[STREAM_FAILED] Query terminated with exception: Failed when Python streaming data source did something: \
Traceback (most recent call last):
  File "changes.py", line 138, in partitions
headwater.errors.PositionError: the checkpoint is at 0/5, and the server only at 0/3
 SQLSTATE: 38000
=== Streaming Query ===
headwater.errors.SlotMissing: this stands in the plan, and nobody said it
"""


def test_an_error_of_ours_keeps_its_class_and_sentence_on_the_way_through_spark():
    found = translate(StreamingQueryException(PLANNER))
    assert type(found) is PositionError
    assert str(found) == "the checkpoint is at 0/5, and the server only at 0/3"


@pytest.mark.parametrize(("name", "kind"), [("SinkUnavailable", SinkUnavailable), ("ConnectionLost", ConnectionLost)])
def test_what_may_pass_is_still_worth_another_try_after_spark_has_wrapped_it(name, kind):
    found = translate(RuntimeError(f"Traceback\nheadwater.errors.{name}: the target is away\n"))
    assert type(found) is kind
    assert found.retryable


def test_of_several_errors_in_a_row_the_last_one_counts():
    text = "headwater.errors.SlotMissing: first\n\nDuring handling ...\nheadwater.errors.SinkFenced: sink 'a': taken over\n"
    found = translate(RuntimeError(text))
    assert type(found) is SinkFenced
    assert not found.retryable


def test_an_error_that_was_never_wrapped_is_the_same_object():
    error = SlotMissing("hw")
    assert translate(error) is error


def test_what_is_not_ours_is_said_in_one_line_and_tried_again():
    text = "Job aborted\nTraceback (most recent call last):\n  ...\nZeroDivisionError: division by zero\n\tat org.apache\n"
    found = translate(RuntimeError(text))
    assert type(found) is PipelineFailed
    assert found.retryable
    assert str(found).endswith("ZeroDivisionError: division by zero")
    assert "\n" not in str(found)


def test_a_class_that_is_no_error_of_ours_is_not_made_into_one():
    found = translate(RuntimeError("headwater.errors.Nonsense: what is this\n"))
    assert type(found) is PipelineFailed
