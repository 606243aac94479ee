"""Columns written in COPY's text form read back as they were."""

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.sinks.postgres import copy_text
from headwater.spark.sinks.postgres.copy_text import copy_text as write

_MEANINGS = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}

values = st.none() | st.text(
    st.sampled_from(
        '\\N.tnr\t\n\r"',
    )
    | st.characters(exclude_characters="\0", exclude_categories=["Cs"])
)


def read(data: bytes) -> list[tuple[str | None, ...]]:
    """As the server does: lines, then columns, then escapes."""
    lines = data.decode().split("\n")
    assert lines.pop() == "", "every line ends"
    return [
        tuple(None if c == "\\N" else re.sub(r"\\(.)", lambda m: _MEANINGS[m[1]], c) for c in line.split("\t"))
        for line in lines
    ]


@given(st.lists(st.tuples(values, values, values), min_size=1, max_size=20))
def test_any_text_comes_back_and_null_is_not_text(rows):
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]

    assert read(b"".join(write(columns))) == rows


def test_a_column_that_is_the_same_everywhere_is_given_as_text():
    assert b"".join(write([pa.array(["a", "b"]), "\\N", "f"])) == b"a\t\\N\tf\nb\t\\N\tf\n"


def test_slices_and_many_runs_make_the_same_lines(monkeypatch):
    column = pa.array([str(n) for n in range(100)])
    monkeypatch.setattr(copy_text, "_RUN_BYTES", 64)

    pieces = list(write([column.slice(10, 50), column.slice(20, 50)]))

    assert len(pieces) > 5
    assert read(b"".join(pieces)) == [(str(n + 10), str(n + 20)) for n in range(50)]
