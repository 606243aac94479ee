"""Statements from `.sql` text: named blocks, bound parameters, composed identifiers, a schema of one's own."""

from dataclasses import dataclass

import pytest
from psycopg import sql

from headwater.postgres.statements import parse, with_schema

TEXT = """-- name: find_job
-- The job of a queue.
select id from headwater.job where queue = %(queue)s;

-- name: make_table
-- A table of a user's choosing.
create table {name} (id bigint);
"""


@dataclass(frozen=True, slots=True)
class Job:
    id: int


def test_a_file_is_cut_into_named_queries_without_their_semicolon():
    queries = parse(TEXT)

    assert list(queries) == ["find_job", "make_table"]
    assert queries["find_job"].text.endswith("queue = %(queue)s")


@pytest.mark.parametrize("parameters", [{}, {"queue": "a", "more": 1}, {"other": 1}])
def test_parameters_that_do_not_fit_are_refused(parameters):
    with pytest.raises(TypeError, match=r"find_job takes \['queue'\]"):
        parse(TEXT)["find_job"].bind(Job, **parameters)


def test_a_configured_schema_replaces_the_default_wherever_it_qualifies_a_name():
    text = "create schema headwater; select * from headwater.job; -- headwater's own"

    assert with_schema(text, "mine") == 'create schema "mine"; select * from "mine".job; -- headwater\'s own'


def test_an_identifier_is_quoted_and_keeps_its_percent_sign():
    statement = parse(TEXT)["make_table"].compose(name=sql.Identifier("we", '100% "sure"'))

    assert statement.query.as_string().endswith('create table "we"."100% ""sure""" (id bigint)')
    assert statement.parameters is None
