"""Transforms on a real session: filter, SQL and functions, in a DataFrame and in micro-batches, and what is refused."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from headwater.errors import TransformError
from headwater.spark.settings import TransformSettings
from headwater.spark.shape import ENVELOPE
from headwater.spark.transform import apply_transform, check_transform

pytestmark = pytest.mark.timeout(300)

AT = datetime(2026, 11, 15, tzinfo=UTC)


def change(ordinal, op="c", table="orders", key='{"id": 1}'):
    return (100, ordinal, 7, AT, op, "public", table, key, None, key, [])


@pytest.fixture
def changes(spark):
    return spark.createDataFrame([change(0), change(1, "u"), change(2, "d"), change(3, table="parts")], ENVELOPE)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current directory; gives the name of a function in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:transform"

    return write


def ordinals(result):
    return sorted(row.ordinal for row in result.collect())


def test_a_filter_keeps_what_it_is_true_for(changes):
    assert ordinals(apply_transform(changes, TransformSettings(filter="op <> 'd'"))) == [0, 1, 3]


def test_sql_sees_what_the_filter_left(changes):
    settings = TransformSettings(filter="op <> 'd'", sql="select * from changes where table = 'orders'")

    assert ordinals(apply_transform(changes, settings)) == [0, 1]


def test_columns_come_in_their_order_however_the_sql_names_them(changes):
    sql = "select * except (op, commit_lsn), commit_lsn, op from changes"

    result = apply_transform(changes, TransformSettings(sql=sql))

    assert result.columns == ENVELOPE.fieldNames()
    assert ordinals(result) == [0, 1, 2, 3]


def test_a_function_gets_the_changes_and_gives_others(changes, module):
    name = module("keeps_updates", "def transform(changes):\n    return changes.where(changes.op == 'u')\n")

    assert ordinals(apply_transform(changes, TransformSettings(function=name))) == [1]


def test_sql_works_in_the_session_of_a_micro_batch(spark, changes, tmp_path):
    settings = TransformSettings(sql="select * from changes where op = 'u'")
    source = tmp_path / "source"
    seen: list[int] = []
    changes.coalesce(1).write.parquet(str(source))

    def deliver(batch, _number):
        seen.extend(row.ordinal for row in apply_transform(batch, settings).collect())

    stream = spark.readStream.schema(ENVELOPE).parquet(str(source)).writeStream.foreachBatch(deliver)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()

    assert seen == [1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TransformSettings(filter="opp = 'd'"), r"transform\.filter: .*`opp` cannot be resolved \(line 1, position 0\)"),
        (TransformSettings(filter="ordinal"), r"transform\.filter: .*is not a boolean"),
        (TransformSettings(sql="selec 1"), r"transform\.sql: Syntax error at or near 'selec' \(line 1, position 0\)"),
        (TransformSettings(sql="select * from nowhere"), r"transform\.sql: The table or view `nowhere` cannot be found"),
        (TransformSettings(sql="select * except (xid, key) from changes"), "missing: xid, key"),
        (TransformSettings(sql="select *, 1 as one from changes"), "not wanted: one"),
        (TransformSettings(sql="select *, op from changes"), "there twice: op"),
        (
            TransformSettings(sql="select * except (xid), string(xid) as xid from changes"),
            "xid is string, not bigint",
        ),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence_before_any_change_is_read(spark, settings, said):
    with pytest.raises(TransformError, match=said) as caught:
        check_transform(spark, settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "returned NoneType; it must return a DataFrame"),
        ("return changes.select('op')", "missing: commit_lsn"),
        ("raise KeyError('region')", "raised KeyError: 'region'"),
        ("return changes.select('oops')", "`oops` cannot be resolved"),
    ],
)
def test_a_function_that_fails_keeps_its_own_words(spark, module, body, said):
    name = module(f"fails_{abs(hash(body))}", f"def transform(changes):\n    {body}\n")

    with pytest.raises(TransformError, match=said):
        check_transform(spark, TransformSettings(function=name))


def test_a_check_leaves_the_views_of_the_session_alone(spark):
    spark.range(5).createOrReplaceTempView("changes")

    check_transform(spark, TransformSettings(sql="select * from changes"))

    assert spark.table("changes").count() == 5
    spark.catalog.dropTempView("changes")


PROGRAM = """
import sys
from pathlib import Path
from headwater.spark.session import build_session
from headwater.spark.settings import TransformSettings
from headwater.spark.shape import ENVELOPE
from headwater.spark.transform import apply_transform

spark = build_session("t", master="local[1]")
changes = spark.createDataFrame([(1, 0, 7, None, "c", "public", "orders", "k", None, "a", [])], ENVELOPE)
print(apply_transform(changes, TransformSettings(function="in_workers:transform")).collect()[0].after)
"""
MODULE = """
from pyspark.sql.functions import udf
from in_workers_too import shout

def transform(changes):
    return changes.withColumn("after", udf(shout, "string")("after"))
"""


def test_a_function_of_the_current_directory_is_found_by_python_workers_too(tmp_path):
    (tmp_path / "in_workers.py").write_text(MODULE)
    (tmp_path / "in_workers_too.py").write_text("def shout(text):\n    return text + '!'\n")
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert (done.returncode, done.stdout) == (0, "a!\n"), done.stderr
