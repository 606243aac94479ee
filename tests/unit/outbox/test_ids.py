"""Ids of version 7: of their time, rising within a call, different between calls."""

from uuid import RFC_4122

from headwater.outbox.ids import ids_at, make_ids


def test_ids_are_of_version_7_and_carry_their_time():
    (first,) = ids_at(0x0123456789AB, b"\xff" * 9, 1)
    assert (first.version, first.variant) == (7, RFC_4122)
    assert first.int >> 80 == 0x0123456789AB


def test_ids_of_one_call_rise_also_from_the_highest_start():
    for noise in (b"\xff" * 5, b"\0" * 5, b"\x80\0\0\0\0"):
        ids = ids_at(1, noise + bytes(range(256)) * 40, 2500)
        assert ids == sorted(set(ids))
        assert {(id_.version, id_.variant, id_.int >> 80) for id_ in ids} == {(7, RFC_4122, 1)}


def test_random_bytes_are_all_used():
    assert (
        len(
            {ids_at(1, noise, 1)[0] for noise in (bytes(9), b"\1" + bytes(8), bytes(4) + b"\1" + bytes(4), bytes(8) + b"\1")}
        )
        == 4
    )


def test_ids_of_different_calls_are_different():
    ids = [id_ for _ in range(500) for id_ in make_ids(4)]
    assert len(set(ids)) == 2000
