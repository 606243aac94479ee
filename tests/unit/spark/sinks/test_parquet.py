"""The files of a Parquet sink: what they hold, where they stand, and that no crash leaves half a range visible."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import SettingsError, SinkError, SinkUnavailable, TransformError
from headwater.model import UNCHANGED, Lineage, Lsn, Position
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.spark.frame import Chunk, Frame, pack
from headwater.spark.sinks.parquet.columns import (
    ENVELOPE_COLUMNS,
    Bounds,
    column_name,
    folder_name,
    sort_envelopes,
    sort_frame,
)
from headwater.spark.sinks.parquet.directory import Committed, Directory, LoadedPieces
from headwater.spark.sinks.parquet.sink import label, local_path
from headwater.spark.sinks.parquet.task import Assignment, stage_frames
from tests.support.capture import pgoutput_writer as write

LINEAGE = Lineage("7000000000000000001", 1, (), "shop", "hw")
START = Position(Lsn(0), 0)
NUMERIC_8_2 = ((8 << 16) | 2) + 4
COLUMNS = [("id", 20, -1, True), ("name", 25, -1, False), ("amount", 1700, NUMERIC_8_2, False), ("at", 1083, -1, False)]
DAY = 86_400_000_000


def frame(*messages: bytes, lane: int = 0) -> Frame:
    data, bounds = lay_out(messages)
    return Frame(lane, None, Batch(data, bounds, relations={}, changes=0, end=None), (), LINEAGE)


def rows_of(*messages: bytes, low: Position = START) -> dict[str, list[dict[str, object]]]:
    """What a frame of these messages puts into each folder."""
    found = sort_frame(frame(*messages), Bounds(low), pipeline="shop", sink="files")
    return {part.folder: part.rows.to_pylist() for part in found.parts}


def only_rows(*messages: bytes) -> list[dict[str, object]]:
    (rows,) = rows_of(*messages).values()
    return rows


def test_rows_of_all_operations_stand_together_in_commit_order():
    rows = only_rows(
        write.begin(100, xid=8),
        write.relation(1, "item", COLUMNS),
        write.insert(1, ["1", "one", "1.50", "24:00:00"]),
        write.delete(1, ["7", None, None, None]),
        write.update(1, ["1", UNCHANGED, None, None]),
        write.update(1, ["2", "two", None, None], ["1", None, None, None]),
        write.truncate(1),
    )

    assert [(row["_ordinal"], row["_op"], row["id"]) for row in rows] == [
        (0, "c", 1),
        (1, "d", 7),
        (2, "u", 1),
        (3, "u_pk", 2),
        (4, "t", None),
    ]
    assert [row["_unchanged"] for row in rows] == [[], [], ["name"], [], []]
    assert [row["_old_key"] for row in rows] == [None, None, None, '{"id": 1}', None]
    assert (str(rows[0]["amount"]), rows[0]["at"], rows[0]["name"]) == ("1.50", "24:00:00", "one")
    assert {(row["_commit_lsn"], row["_xid"], row["_committed_at"]) for row in rows} == {
        (100, 8, datetime(2000, 1, 1, tzinfo=UTC))
    }


def test_a_file_of_deletes_alone_has_all_columns_of_its_table():
    found = sort_frame(
        frame(write.begin(100), write.relation(1, "item", COLUMNS), write.delete(1, ["7", None, None, None])),
        Bounds(START),
        pipeline="shop",
        sink="files",
    )

    schema = found.parts[0].rows.schema
    assert schema.names[:4] == ["id", "name", "amount", "at"]
    assert (schema.field("amount").type, schema.field("at").type) == (pa.decimal128(8, 2), pa.string())


def test_rows_go_to_the_day_of_their_commit_in_utc():
    found = rows_of(
        write.begin(100, micros=DAY - 1),
        write.relation(1, "item", COLUMNS),
        write.insert(1, ["1", None, None, None]),
        write.commit(100, 110),
        write.begin(200, micros=DAY),
        write.insert(1, ["2", None, None, None]),
    )

    assert {folder: [row["id"] for row in rows] for folder, rows in found.items()} == {
        "public.item/date=2000-01-01": [1],
        "public.item/date=2000-01-02": [2],
    }


def test_a_table_that_changes_its_columns_gets_files_with_other_columns():
    found = sort_frame(
        frame(
            write.begin(100),
            write.relation(1, "item", COLUMNS[:1]),
            write.insert(1, ["1"]),
            write.relation(1, "item", COLUMNS[:2]),
            write.insert(1, ["2", "two"]),
        ),
        Bounds(START),
        pipeline="shop",
        sink="files",
    )

    assert [part.rows.column_names[:2] for part in found.parts] == [["id", "_op"], ["id", "name"]]


def test_rows_before_the_bound_are_left_out():
    messages = [write.begin(100), write.relation(1, "item", COLUMNS[:1]), *(write.insert(1, [str(i)]) for i in range(5))]

    found = sort_frame(frame(*messages), Bounds(Position(Lsn(100), 3)), pipeline="shop", sink="files")

    assert [row["id"] for row in found.parts[0].rows.to_pylist()] == [3, 4]
    assert found.skipped == 3


def test_a_value_that_the_column_cannot_hold_makes_its_row_a_letter_and_never_null():
    found = sort_frame(
        frame(
            write.begin(100),
            write.relation(1, "item", COLUMNS),
            write.insert(1, ["1", "a", "NaN", None]),
            write.insert(1, ["2", "b", "2.00", None]),
        ),
        Bounds(START),
        pipeline="shop",
        sink="files",
    )

    assert [row["id"] for part in found.parts for row in part.rows.to_pylist()] == [2]
    (letter,) = found.letters
    assert (letter.key, letter.position, letter.pipeline, letter.sink) == ({"id": 1}, Position(Lsn(100), 0), "shop", "files")
    assert letter.reason == "column 'amount' holds NaN, which decimal128(8, 2) in Parquet cannot"


def test_what_is_wrong_with_an_old_row_that_is_not_written_does_no_harm():
    rows = only_rows(
        write.begin(100),
        write.relation(1, "item", COLUMNS, identity="f"),
        write.update(1, ["1", "a", "3.00", None], ["1", "a", "NaN", None], "O"),
    )

    assert [str(row["amount"]) for row in rows] == ["3.00"]


@pytest.mark.parametrize("column", ["commit_lsn", "ordinal", "committed_at"])
def test_an_envelope_that_lost_its_place_in_a_transform_is_refused_and_not_skipped(column):
    row = dict.fromkeys(ENVELOPE_COLUMNS.names) | {
        "commit_lsn": 100,
        "ordinal": 0,
        "committed_at": 0,
        column: None,
    }

    with pytest.raises(TransformError, match=f"a change without {column} came out of the transform"):
        sort_envelopes([tuple(row.values())], Bounds(START))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("orders", "orders"),
        ("_creek", "%5Fcreek"),
        ("a.b", "a%2Eb"),
        ("x/../y", "x%2F%2E%2E%2Fy"),
        ("größe", "größe"),
        ("k=v", "k%3Dv"),
    ],
)
def test_no_name_of_a_table_can_hide_its_folder_or_leave_the_directory(name, shown):
    assert folder_name(name) == shown


@pytest.mark.parametrize(
    ("name", "shown"), [("id", "id"), ("date", "date_"), ("DATE", "DATE_"), ("date_", "date__"), ("_op", "_op_")]
)
def test_a_column_with_a_name_of_ours_gets_another(name, shown):
    assert column_name(name) == shown


@pytest.mark.parametrize("path", ["/data/x", "file:///data/x", "file://localhost/data/x"])
def test_a_path_and_a_file_uri_name_the_same_directory(path):
    assert local_path(path) == Path("/data/x")


@pytest.mark.parametrize("path", ["s3a://bucket/x", "hdfs://host/x", "file://host/x"])
def test_other_places_are_refused_before_anything_starts(path):
    with pytest.raises(SettingsError, match="local directories for now"):
        local_path(path)


# Three tables in two lanes: several files, so that there is something between them.
def frames(lsn: int) -> list[Frame]:
    def one(oid: int, lane: int) -> Frame:
        messages = (write.insert(oid, [str(lsn + i)]) for i in range(3))
        return frame(write.begin(lsn), write.relation(oid, f"t{oid}", COLUMNS[:1]), *messages, lane=lane)

    return [one(1, 0), one(2, 0), one(3, 1)]


def deliver(path: Path, lsn: int) -> None:
    """A run that writes one range: what tasks and driver do, in one process."""
    directory = Directory(path, sink="files")
    try:
        directory.open("me")
        start, end = max(Position(Lsn(lsn), 0), directory.committed.end), Position(Lsn(lsn + 1), 0)
        assignment = Assignment(path, "shop", "files", Bounds(start), label(start, end))
        rows = [(frame.lane, pack(frame)) for frame in frames(lsn)]
        staged = [
            part for lane in (0, 1) for part in stage_frames(assignment, lane, [row for row in rows if row[0] == lane])
        ]
        if any(part.changes for part in staged):
            directory.commit(Committed(end, LINEAGE, tuple(file for part in staged for file in part.files)))
    finally:
        directory.close()


def visible(path: Path) -> list[int]:
    files = [file for file in path.glob("*/*/*") if file.name[0] not in "._"]
    return sorted(id for file in files for id in pq.ParquetFile(file).read()["id"].to_pylist())


def hidden(path: Path) -> list[Path]:
    return list(path.glob("*/*/.*"))


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


RANGE_100, RANGE_200 = sorted([100, 101, 102] * 3), sorted([200, 201, 202] * 3)


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_any_step_shows_only_what_is_committed_and_the_next_run_completes_it(tmp_path, before):
    """Steps are counted until one run gets through, so that none is left out when the code changes."""
    seen = set()
    for step in range(1000):
        path = tmp_path / str(step)
        deliver(path, 100)
        with pytest.MonkeyPatch.context() as patched:
            calls = arm_with(patched, step, before=before)
            try:
                deliver(path, 200)
                died = False
            except Killed:
                died = True
        if not died:
            break
        shown = visible(path)
        is_committed = '"end": [201, 0]' in (path / "_headwater" / "committed").read_text()
        assert shown == RANGE_100 or is_committed, f"step {step} ({calls[-1]}) shows what does not count"
        assert len(shown) - len(RANGE_100) in (0, 3, 6, 9)
        seen.add((len(shown) - len(RANGE_100), is_committed))

        deliver(path, 200)

        assert visible(path) == RANGE_100 + RANGE_200
        assert hidden(path) == []
    else:
        pytest.fail("it never got through")
    assert {(0, False), (0, True), (3, True), (9, True)} <= seen, "the steps that matter were not met"
    assert visible(path) == RANGE_100 + RANGE_200


def arm_with(patched: pytest.MonkeyPatch, number: int, *, before: bool) -> list[str]:
    """Have the process die at the n-th call that changes something on disk, just before or just after it.

    Of a file that it was about to sync, a half is on disk.
    """
    calls: list[str] = []

    def wrap(name):
        real = getattr(os, name)

        def call(*arguments, **options):
            calls.append(name)
            if len(calls) <= number:
                return real(*arguments, **options)
            if not before and len(calls) == number + 1:
                real(*arguments, **options)
            if before and len(calls) == number + 1 and name == "fsync":
                tear(*arguments)
            raise Killed

        return call

    for name in ("fsync", "rename", "replace", "unlink", "mkdir"):
        patched.setattr(os, name, wrap(name))
    return calls


def tear(descriptor: int) -> None:
    file = Path(f"/proc/self/fd/{descriptor}").readlink()
    if file.is_file():
        os.truncate(file, file.stat().st_size // 2)


def test_files_are_on_disk_before_their_range_counts(tmp_path, monkeypatch):
    """Each file and each folder is synced before `committed` is replaced."""
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor):
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def note_replace(old, new):
        steps.append(f"replace {Path(new).name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)

    deliver(tmp_path, 100)

    before = steps[: steps.index("replace committed")]
    assert len([name for name in before if name.startswith(".changes-")]) == 3
    assert {"date=2000-01-01", "public.t1", "public.t2", "public.t3", tmp_path.name, "committed.partial"} <= set(before)
    assert steps[steps.index("replace committed") + 1] == "_headwater"


def test_names_carry_the_range_and_the_lane(tmp_path):
    deliver(tmp_path, 100)

    names = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("public.*/*/*"))
    assert names == [
        "public.t1/date=2000-01-01/changes-0000000000000064.0-0000000000000065.0-lane0-0.0.parquet",
        "public.t2/date=2000-01-01/changes-0000000000000064.0-0000000000000065.0-lane0-0.1.parquet",
        "public.t3/date=2000-01-01/changes-0000000000000064.0-0000000000000065.0-lane1-1.0.parquet",
    ]


def test_the_state_does_not_grow_with_the_number_of_ranges(tmp_path):
    for lsn in range(100, 200, 10):
        deliver(tmp_path, lsn)

    assert sorted(file.name for file in (tmp_path / "_headwater").iterdir()) == ["committed", "lock", "owner"]
    assert (tmp_path / "_headwater" / "committed").stat().st_size < 2000
    assert len(visible(tmp_path)) == 90


def test_files_that_their_user_has_removed_are_not_missed(tmp_path):
    deliver(tmp_path, 100)
    for file in tmp_path.glob("public.*/*/*"):
        file.unlink()

    deliver(tmp_path, 100)

    assert visible(tmp_path) == []


def test_two_writers_of_one_directory_are_refused(tmp_path):
    deliver(tmp_path, 100)

    with pytest.raises(SinkError, match="belongs to me, and two writers would skip each other's changes") as refused:
        Directory(tmp_path, sink="files").open("somebody else")
    assert not refused.value.retryable


def test_a_run_that_still_writes_keeps_the_next_one_out_until_it_ends(tmp_path):
    first, second = Directory(tmp_path, sink="files"), Directory(tmp_path, sink="files")
    first.open("me")
    with pytest.raises(SinkUnavailable, match="another run of the pipeline still writes"):
        second.open("me")

    first.close()
    second.open("me")
    second.close()


def test_a_damaged_record_is_not_taken_for_an_empty_directory(tmp_path):
    deliver(tmp_path, 100)
    (tmp_path / "_headwater" / "committed").write_text("{")

    with pytest.raises(SinkError, match="is damaged"):
        deliver(tmp_path, 200)


def test_files_of_tasks_that_are_not_there_are_not_committed(tmp_path):
    """Executors that see another directory than the driver write where nobody looks."""
    directory = Directory(tmp_path / "here", sink="files")
    directory.open("me")
    assignment = Assignment(tmp_path / "there", "shop", "files", Bounds(START), "0-101")
    (staged,) = stage_frames(assignment, 0, [(0, pack(one)) for one in frames(100)])

    with pytest.raises(SinkError, match="driver and executors must see the same directory"):
        directory.commit(Committed(Position(Lsn(101), 0), LINEAGE, staged.files))
    directory.close()


def test_a_place_that_cannot_be_written_is_said_by_the_task_without_a_traceback(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    assignment = Assignment(blocked, "shop", "files", Bounds(START), "0-101")

    (staged,) = stage_frames(assignment, 0, [(0, pack(one)) for one in frames(100)])

    assert (os.strerror(staged.failure or 0), staged.files) == ("Not a directory", ())


def waiting(path: Path) -> list[str]:
    """The attempts whose rows are hidden."""
    return sorted(file.name.split("-")[1] for file in path.glob("*/*/.rows-*"))


def restart(path: Path) -> None:
    directory = Directory(path, sink="files")
    directory.open("me")
    directory.close()


def load(path: Path, *attempts: str) -> None:
    """A run that has written a piece of each of these attempts at loading a table, and completed none."""
    directory = Directory(path, sink="files")
    try:
        directory.open("me")
        loads = []
        for number, attempt in enumerate(attempts):
            chunk = Chunk(attempt, 0, 0, RELATION, one_row(number), (), LINEAGE, Lsn(50), datetime(2026, 11, 16, tzinfo=UTC))
            assignment = replace(Assignment(path, "shop", "files", Bounds(START), "0"), attempt=attempt)
            (staged,) = stage_frames(assignment, 0, [(-1, pack(chunk))])
            loads.append(LoadedPieces(attempt, (("public", f"t{number}"),), 1, staged.waiting))
        directory.commit(Committed(Position(Lsn(50), 0), LINEAGE, loads=tuple(loads)))
    finally:
        directory.close()


RELATION = Relation(1, "public", "item", "d", (RelationColumn("id", True, 20, -1),))


def one_row(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": [str(number)]})


def power_fails(*_: object) -> None:
    raise OSError(5, "the disk is gone")


def test_rows_of_a_table_that_is_being_loaded_stay_hidden_over_a_restart(tmp_path):
    load(tmp_path, "one")
    (tmp_path / "public.item/date=2026-11-16/.rows-of-a-task-that-died.parquet").touch()

    restart(tmp_path)

    assert (visible(tmp_path), waiting(tmp_path)) == ([], ["one"])


def test_a_crash_right_after_the_completion_counted_shows_all_rows_of_the_attempt(tmp_path, monkeypatch):
    load(tmp_path, "one", "two")
    directory = Directory(tmp_path, sink="files")
    directory.open("me")
    one, two = directory.committed.loads
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", power_fails)
        with pytest.raises(SinkUnavailable):
            directory.commit(replace(directory.committed, files=one.files, loads=(two,), completed="one"))
    directory.close()
    assert visible(tmp_path) == []

    restart(tmp_path)

    assert (visible(tmp_path), waiting(tmp_path)) == ([0], ["two"])


def test_files_of_an_attempt_that_died_go(tmp_path):
    load(tmp_path, "one", "two")
    directory = Directory(tmp_path, sink="files")
    directory.open("me")
    directory.commit(replace(directory.committed, loads=directory.committed.loads[1:]))
    directory.close()

    assert (visible(tmp_path), waiting(tmp_path)) == ([], ["two"])
