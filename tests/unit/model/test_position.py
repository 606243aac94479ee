from headwater.model import Lineage, Lsn, Position, TimelineSwitch


def _lineage(timeline: int, *switches: TimelineSwitch) -> Lineage:
    return Lineage("7001", timeline, switches, "shop", "headwater_orders")


def test_positions_order_by_commit_and_then_by_ordinal():
    places = [Position(Lsn(2), 0), Position(Lsn(1), 10), Position(Lsn(1), 9)]
    assert sorted(places) == [places[2], places[1], places[0]]


def test_an_event_id_names_server_timeline_database_slot_and_position():
    assert _lineage(1).event_id(Position(Lsn(0x1_00000A), 3)) == "7001.1.shop.headwater_orders.100000A.3"


def test_an_event_keeps_its_id_after_a_promotion():
    before = _lineage(1)
    after = _lineage(2, TimelineSwitch(1, Lsn(500)))
    assert after.event_id(Position(Lsn(499), 0)) == before.event_id(Position(Lsn(499), 0))


def test_what_a_new_timeline_writes_at_an_old_position_is_another_event():
    # A standby that lagged writes over positions that the old primary had used beyond the switch.
    before = _lineage(1)
    after = _lineage(2, TimelineSwitch(1, Lsn(500)))
    assert after.event_id(Position(Lsn(500), 0)) != before.event_id(Position(Lsn(500), 0))


def test_several_promotions_leave_each_position_with_the_timeline_that_wrote_it():
    lineage = _lineage(5, TimelineSwitch(1, Lsn(100)), TimelineSwitch(3, Lsn(200)))
    assert [lineage.timeline_of(Lsn(at)) for at in (0, 99, 100, 199, 200, 999)] == [1, 1, 3, 3, 5, 5]


def test_a_lineage_goes_on_after_a_promotion_up_to_where_the_standby_was():
    before, after = _lineage(1), _lineage(2, TimelineSwitch(1, Lsn(500)))
    assert after.continues(before, Lsn(0))
    assert after.continues(before, Lsn(500))
    assert not after.continues(before, Lsn(501))


def test_a_lineage_does_not_go_on_on_another_server():
    other = Lineage("7002", 1, (), "shop", "headwater_orders")
    assert not other.continues(_lineage(1), Lsn(10))


def test_a_logical_message_has_an_id_that_no_change_has():
    lineage = _lineage(1)
    assert lineage.message_id(Lsn(16)) == "7001.1.shop.headwater_orders.10.m"
