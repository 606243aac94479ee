"""Statements on a server."""

import pytest

from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import parse, written_out

QUERIES = parse("-- name: echo\nselect %(first)s::text, %(second)s::text; select 1;\n")


@pytest.mark.parametrize("text", ["plain", "it's", "back\\slash' or \\'", "$1 %s %(second)s %%", "ä€🦆", "", "1.5"])
def test_parameters_that_are_written_out_are_what_they_were(database, text):
    statement = QUERIES["echo"].bind(str, first=text, second=None)
    with connect_sync(database) as connection:
        cursor = connection.execute(written_out(connection, statement))
        assert cursor.fetchall() == [(text, None)]
        assert cursor.nextset()
        assert cursor.fetchall() == [(1,)]


def test_also_where_a_backslash_escapes(database):
    with connect_sync(database) as connection:
        connection.execute("set standard_conforming_strings = off")
        statement = QUERIES["echo"].bind(str, first="a\\' --", second="b")
        assert connection.execute(written_out(connection, statement)).fetchall() == [("a\\' --", "b")]
