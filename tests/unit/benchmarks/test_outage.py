"""The picture of an outage: drawn of what was counted."""

from xml.etree import ElementTree

import pytest

from benchmarks.outbox_relay.outage import Outage, drawn, step


def test_the_picture_has_both_counts_and_the_time_without_a_broker():
    outage = Outage([0.0, 1.0, 2.0, 3.0], [0, 100, 200, 300], [0, 100, 100, 300], away=(1.0, 2.0))
    picture = drawn(outage)
    lines = [each for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [4, 4]
    assert "the broker is away for 1 s" in picture


@pytest.mark.parametrize(("most", "wanted"), [(3, 1), (8, 1), (9, 2), (75, 10), (16_000, 2000)])
def test_the_steps_of_an_axis_are_round_and_few(most, wanted):
    assert step(most) == wanted
