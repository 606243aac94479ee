"""Where messages stand, of many at once."""

import pytest

from headwater.topics import Placed
from headwater.topics.places import Places, join_places, place_messages


def test_places_follow_from_the_first_offsets_of_frames():
    frames = [(0, 10), (0, 12), (3, 5)]
    assert list(place_messages(frames, [3, 0, 0, 3, 0])) == [
        Placed(3, 5),
        Placed(0, 10),
        Placed(0, 11),
        Placed(3, 6),
        Placed(0, 12),
    ]
    assert list(place_messages([(2, 7), (2, 9)], [2, 2, 2])) == [Placed(2, 7), Placed(2, 8), Placed(2, 9)]


def test_places_are_like_a_list_of_them():
    places = join_places([Places([1, 0], [4, 7]), Places([2] * 2, range(9, 11))])
    assert (len(places), places[1], places[-1]) == (4, Placed(0, 7), Placed(2, 10))
    assert list(places[1:3]) == [Placed(0, 7), Placed(2, 9)]
    assert Placed(2, 9) in places
    assert places == [Placed(1, 4), Placed(0, 7), Placed(2, 9), Placed(2, 10)]
    assert Places([0, 0], range(2)) == Places([0, 0], [0, 1]) != Places([0, 1], [0, 1])
    assert Places([], []) == []
    with pytest.raises(IndexError):
        places[4]
