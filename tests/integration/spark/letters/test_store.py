"""Dead letters in a state database."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from threading import Thread

import pytest

from headwater.model import Lsn, Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.types import Field, Kind, PgType
from headwater.spark.letters import (
    Letter,
    State,
    drop_letters,
    find_letter,
    list_earlier,
    list_letters,
    list_open,
    lock_letter,
    mark_replayed,
    post_letters,
    prepare_letters,
    save_letters,
    supersede,
)
from tests.support.waiting import eventually

TYPES = (PgType(oid=90001, schema="public", name="point3", kind=Kind.COMPOSITE, fields=(Field("x", 20), Field("y", 25, 7))),)
LETTER = Letter(
    pipeline="shop",
    sink="out",
    event_id="7.1.db.hw.64.0",
    schema="public",
    table="item",
    op="u",
    position=Position(Lsn(100), 0),
    xid=4_000_000_000,
    committed_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    key={"id": 1, "ratio": 1e300, "name": "it's"},
    reason="does not fit\0here",
    relation=b"R\0\1",
    message=b"I\0\xff",
    new_key={"id": 2},
    own_types=TYPES,
)


def at(number: int, **changed) -> Letter:
    return replace(LETTER, event_id=f"7.1.db.hw.64.{number}", position=Position(Lsn(100), number), **changed)


@pytest.fixture
def state(database):
    prepare_letters(database)
    with closing(connect_sync(database)) as connection:
        yield connection


def test_a_letter_comes_back_as_it_was_kept(state):
    envelope = {"after": '{"a": "\\u0000"}', "number": 1e300}
    behind_transform = at(1, relation=None, message=None, envelope=envelope, own_types=(), new_key=None, key=None)

    assert save_letters(state, [LETTER, behind_transform]) == 2

    first, second = (find_letter(state, letter.id) for letter in list_letters(state))
    assert first is not None and second is not None
    assert first.letter == replace(LETTER, reason="does not fit\\0here")
    assert replace(second.letter, reason=LETTER.reason) == behind_transform
    assert (first.state, second.state) == (State.OPEN, State.OPEN)


def test_a_letter_that_comes_again_is_not_new(state):
    save_letters(state, [LETTER])

    assert save_letters(state, [LETTER, at(1), at(1)]) == 1
    assert save_letters(state, [replace(LETTER, sink="other")]) == 1
    assert len(list_letters(state)) == 3


def test_one_that_was_replayed_is_not_opened_by_coming_again(state):
    save_letters(state, [LETTER])
    (letter,) = list_open(state, "shop", "out")
    mark_replayed(state, letter.id)

    assert save_letters(state, [LETTER]) == 0
    assert list_open(state, "shop", "out") == []


def test_nothing_is_connected_to_when_there_is_nothing_to_keep():
    assert post_letters("postgresql://nowhere.invalid/x", []) == 0


def test_open_letters_are_those_of_a_sink_in_the_order_of_the_stream(state):
    save_letters(state, [at(10), at(9), at(3, sink="other"), at(1, pipeline="elsewhere")])

    found = list_open(state, "shop", "out")

    assert [(letter.position.ordinal, letter.key, letter.new_key) for letter in found] == [
        (9, LETTER.key, LETTER.new_key),
        (10, LETTER.key, LETTER.new_key),
    ]


def test_only_open_letters_are_superseded(state):
    save_letters(state, [at(1), at(2)])
    first, second = list_open(state, "shop", "out")
    mark_replayed(state, first.id)

    assert supersede(state, [first.id, second.id]) == 1

    assert [letter.state for letter in list_letters(state)] == [State.REPLAYED, State.SUPERSEDED]


def test_superseding_waits_for_a_replay_that_holds_the_letter(state, database):
    save_letters(state, [LETTER])
    (letter,) = list_open(state, "shop", "out")
    done: list[int] = []

    def run() -> None:
        with closing(connect_sync(database)) as sink:
            done.append(supersede(sink, [letter.id]))

    waiting = Thread(target=run)
    with state.transaction():
        lock_letter(state, letter.id)
        waiting.start()
        eventually(lambda: state.execute("select from pg_locks where not granted").fetchone() is not None)
        mark_replayed(state, letter.id)
        assert done == []
    waiting.join()

    assert done == [0]
    assert list_letters(state)[0].state == State.REPLAYED


def test_a_letter_that_was_superseded_meanwhile_is_seen_so_by_whoever_waited_for_it(state, database):
    save_letters(state, [LETTER])
    (letter,) = list_open(state, "shop", "out")
    found = []

    def run() -> None:
        with closing(connect_sync(database)) as other, other.transaction():
            found.append(lock_letter(other, letter.id))

    waiting = Thread(target=run)
    with state.transaction():
        supersede(state, [letter.id])
        waiting.start()
        eventually(lambda: state.execute("select from pg_locks where not granted").fetchone() is not None)
    waiting.join()

    assert [one and one.state for one in found] == [State.SUPERSEDED]


def test_filters_choose_by_pipeline_sink_table_and_state(state):
    save_letters(state, [at(1), at(2, sink="other"), at(3, table="pair"), at(4, pipeline="elsewhere")])
    supersede(state, [list_open(state, "shop", "other")[0].id])

    def ordinals(**filters) -> list[int]:
        return sorted(letter.ordinal for letter in list_letters(state, **filters))

    assert ordinals() == [1, 2, 3, 4]
    assert ordinals(pipeline="shop") == [1, 2, 3]
    assert ordinals(sink="out") == [1, 3, 4]
    assert ordinals(table="pair") == ordinals(table="public.pair") == [3]
    assert ordinals(state=State.SUPERSEDED) == [2]


def test_older_open_letters_of_the_same_row_are_found_by_either_key(state):
    letters = [
        at(1, key={"id": 1}, new_key=None),
        at(2, key={"id": 9}, new_key={"id": 1}),
        at(3, key={"id": 3}, new_key=None),
        at(4, key={"id": 1}, new_key=None, table="pair"),
        at(5, key={"id": 1}, new_key={"id": 4}),
        at(6, key={"id": 1}, new_key=None),
    ]
    save_letters(state, letters)
    ids = {letter.ordinal: letter.id for letter in list_letters(state)}

    assert list_earlier(state, ids[5]) == [ids[1], ids[2]]
    assert list_earlier(state, ids[1]) == []


def test_dropped_letters_are_gone(state):
    save_letters(state, [at(1), at(2)])
    first, second = list_letters(state)

    assert drop_letters(state, [first.id, 999]) == [first.id]
    assert [letter.id for letter in list_letters(state)] == [second.id]
    assert find_letter(state, first.id) is None
