"""How changes look as lines."""

import json
from datetime import UTC, datetime

from headwater.cli.lines import json_line, text_line
from headwater.model import UNCHANGED, Change, Lineage, LogicalMessage, Lsn, Op, Position

LINEAGE = Lineage("7001", 1, (), "shop", "hw")
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def _change(op: Op, key=None, before=None, after=None) -> Change:
    return Change(Position(Lsn(255), 2), 900, AT, op, "public", 'o"dd', key, before, after)


def test_a_json_line_has_the_stable_id_the_position_and_the_rows():
    change = _change(Op.UPDATE, {"id": "1"}, None, {"id": "1", "big": UNCHANGED, "note": None, "name": '"ü"'})
    assert json.loads(json_line(change, LINEAGE)) == {
        "id": "7001.1.shop.hw.FF.2",
        "op": "u",
        "schema": "public",
        "table": 'o"dd',
        "commit_lsn": "0/FF",
        "ordinal": 2,
        "xid": 900,
        "committed_at": "2026-01-02T03:04:05.678901+00:00",
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "note": None, "name": "ü"},
        "unchanged": ["big"],
    }


def test_a_json_line_is_one_line_whatever_the_values_hold():
    change = _change(Op.INSERT, None, None, {"v": json.dumps("a\nb\r\u2028")})
    assert json_line(change, LINEAGE).splitlines()[0].startswith('{"id"')
    assert "\n" not in json_line(change, LINEAGE)


def test_a_logical_message_is_a_line_of_its_own_kind():
    line = json.loads(json_line(LogicalMessage(Lsn(16), "app", b"text", Position(Lsn(32), 0), 5, AT), LINEAGE))
    assert (line["op"], line["id"], line["prefix"], line["content"]) == ("m", "7001.1.shop.hw.10.m", "app", "text")
    assert line["commit_lsn"] == "0/20"


def test_content_that_is_not_text_is_kept_in_base64():
    line = json.loads(json_line(LogicalMessage(Lsn(16), "app", b"\xffx", None, None, None), LINEAGE))
    assert line["content_base64"] == "/3g="
    assert "content" not in line


def test_a_text_line_tells_null_unchanged_and_value_apart():
    line = text_line(_change(Op.UPDATE, {"id": "1"}, None, {"id": "1", "big": UNCHANGED, "note": None}), color=False)
    assert line.endswith("id=1 big=(unchanged) note=NULL")
    assert "update" in line
    assert "0/FF:2" in line


def test_a_text_line_shows_what_a_key_was_before():
    line = text_line(_change(Op.UPDATE_KEY, {"id": "1"}, {"id": "1"}, {"id": "2", "v": '"x"'}), color=False)
    assert line.endswith('id=1 -> id=2 v="x"')


def test_a_long_value_is_cut_for_people_and_not_for_programs():
    change = _change(Op.INSERT, None, None, {"v": json.dumps("x" * 500)})
    assert len(text_line(change, color=False)) < 200
    assert "x" * 500 in json_line(change, LINEAGE)


def test_a_text_line_has_colour_only_when_asked():
    assert "\x1b" not in text_line(_change(Op.DELETE, {"id": "1"}, {"id": "1"}), color=False)
    assert "\x1b" in text_line(_change(Op.DELETE, {"id": "1"}, {"id": "1"}), color=True)


def test_a_text_line_cannot_make_a_terminal_do_something():
    change = _change(Op.INSERT, None, None, {"v\x1b[2J": '"\u009b31m \u202e"'})
    assert text_line(change, color=False).isprintable()
