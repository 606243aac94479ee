"""A position stands still if the server moves on without it, and not if there is nothing to confirm."""

from headwater.model import Lsn
from headwater.spark.monitor.stillness import Stillness


def seconds(*seen):
    """After looks at a slot and a server, five seconds apart."""
    stillness = Stillness()
    for number, (confirmed, flushed) in enumerate(seen):
        stillness.see(100 + 5 * number, Lsn(confirmed), Lsn(flushed))
    return stillness.seconds


def test_a_position_that_follows_the_server_does_not_stand_still():
    assert seconds((10, 10), (20, 20), (30, 30)) == 0


def test_a_position_that_moves_behind_the_server_does_not_stand_still():
    assert seconds((10, 100), (20, 200), (30, 300)) == 0


def test_a_server_where_nothing_is_written_gives_nothing_to_confirm():
    assert seconds((10, 10), (10, 10), (10, 10), (10, 10)) == 0


def test_a_position_that_stays_while_the_server_moves_stands_still():
    assert seconds((10, 10), (10, 20), (10, 30), (10, 40)) == 15


def test_a_position_that_stays_behind_what_was_written_before_stands_still_once_more_is_written():
    assert seconds((10, 50), (10, 50), (10, 50)) == 0
    assert seconds((10, 50), (10, 51), (10, 52)) == 10


def test_a_position_that_moves_again_is_well_at_once():
    assert seconds((10, 10), (10, 20), (10, 30), (20, 40)) == 0


def test_a_source_that_does_not_answer_is_not_known_to_have_moved():
    stillness = Stillness()
    stillness.see(100, Lsn(10), Lsn(10))
    stillness.miss(140)

    assert stillness.seconds == 40
