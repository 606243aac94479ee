"""The benchmark of the queue: what it compares, what is offered, and a reference that is what it says it is."""

import math
from array import array

import pytest

from benchmarks.queue import statements
from benchmarks.queue.__main__ import PARTS
from benchmarks.queue.email_load import Turn as LoadTurn
from benchmarks.queue.email_load import over
from benchmarks.queue.jobs import PGMQ, PGQUEUER, PROCRASTINATE, Turn, over_best_peer
from benchmarks.queue.peer_queues import Pgmq
from benchmarks.queue.reference_messaging import INSERT_ROWS, NOTIFY_IDS, STEPS, batches, payloads
from benchmarks.queue.steady_load import Ages, Offer, Offered, milliseconds
from benchmarks.queue.xmin_horizon import measured


def test_each_group_of_bars_has_a_part():
    assert [*PARTS] == ["jobs", "load", "pickup", "idle", "horizon"]


def test_the_steps_are_those_of_the_original():
    assert [(step.notify_ids, step.pool) for step in STEPS] == [(1, 10), (350, 10), (350, 32), (350, 32)]
    assert [step.is_parallel for step in STEPS] == [False, True, True, True]
    assert [step.claims_all for step in STEPS] == [False, False, False, True]


def test_a_notification_of_the_reference_is_one_id_or_many_and_never_longer_than_the_server_takes():
    assert [*payloads([7, 8, 9], 1)] == ["7", "8", "9"]
    assert [*payloads([7, 8, 9], 2)] == ["7,8", "9"]
    longest = next(payloads([10**20] * NOTIFY_IDS, NOTIFY_IDS))
    assert len(longest) < 8_000


def test_the_reference_inserts_its_rows_in_batches_and_forgets_none():
    sizes = [len(rows) for rows in batches(range(1_200), INSERT_ROWS)]
    assert sizes == [500, 500, 200]


def test_an_insert_of_the_reference_has_a_parameter_for_each_column_of_each_row():
    query = statements.insert_emails(2).query.as_string()
    assert "($1, $2, $3, $4, $5, $6, $7), ($8, $9, $10, $11, $12, $13, $14)" in query


def test_peers_are_tried_in_several_settings_each_of_which_has_its_own_words():
    for every in (PGQUEUER, PROCRASTINATE, PGMQ):
        assert len({arm.settings for arm in every}) == len(every) > 2
        assert len({arm.name for arm in every}) == 1


def test_a_peer_that_deletes_keeps_nothing_and_one_that_archives_does():
    assert Pgmq(100, 1, True, "delete").keeps == "nothing"
    assert Pgmq(100, 1, True, "archive").keeps == "a row of each message in its archive"


def test_ours_is_compared_with_the_best_peer_of_the_same_round():
    def round_of(ours: float, **peers: float) -> dict[str, Turn]:
        return {name: Turn(1.0, worked) for name, worked in {"ours": ours, **peers}.items()}

    rounds = [round_of(600, one=100, other=200), round_of(900, one=300, other=100), round_of(800, one=100, other=100)]
    assert over_best_peer(rounds) == 3


def test_ratios_of_the_load_test_are_those_of_the_same_round():
    ours = [LoadTurn(100, 800), LoadTurn(100, 400), LoadTurn(100, 900)]
    reference = [LoadTurn(50, 100), LoadTurn(50, 100), LoadTurn(25, 100)]
    assert over(ours, reference, "consumed") == 8
    assert over(ours, reference, "produced") == 2


def test_all_connections_together_offer_the_rate_and_take_turns():
    offer = Offer("", per_second=800, seconds=2.0, connections=8)
    due = sorted(at for place in range(offer.connections) for at in offer.due(place))
    assert len(due) == 1_600
    assert due[:3] == pytest.approx([0.0, 0.00125, 0.0025])
    assert due[-1] < 2.0


def test_jobs_that_share_a_transaction_are_due_together():
    assert [*Offer("", per_second=800, seconds=0.02, per_call=4).due(0)] == pytest.approx([0.0, 0.005, 0.01, 0.015])


def test_ages_are_from_when_a_job_was_sent_to_when_its_handler_began():
    ages = Ages()
    ages.note(1_000_000_000, 1_250_000_000)
    assert (list(ages.sent), list(ages.age)) == ([1.0], [0.25])


def test_ages_of_the_first_and_the_last_part_are_told_by_when_jobs_were_sent():
    ages = Ages(array("d", [30.0, 10.0, 20.0]), array("d", [0.3, 0.1, 0.2]))
    assert list(ages.of_first(0.1)) == [0.1]
    assert list(ages.of_last(0.5)) == [0.3, 0.2]
    assert not Ages().of_last(0.5).size


def test_a_backlog_of_a_load_that_was_not_offered_is_not_a_number():
    assert measured(3, Offered(jobs=8_000, seconds=10.1)) == 3
    assert math.isnan(measured(0, Offered(jobs=8_000, seconds=12.0)))


def test_a_percentile_of_nothing_is_not_a_number():
    assert math.isnan(milliseconds(Ages().of_last(1.0), 99))
    assert milliseconds(Ages(array("d", [1.0, 2.0]), array("d", [0.001, 0.003])).of_last(1.0), 50) == 2
