"""Tables and sizes for people."""

import pytest

from headwater.cli.output import human_bytes, print_table


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (5 << 60, "5120.0 PiB"), (-2048, "-2.0 KiB")],
)
def test_sizes_are_readable(size, said):
    assert human_bytes(size) == said


def test_a_table_in_a_pipe_is_aligned_text(capsys):
    print_table(("slot", "kept"), [("headwater_shop", "1 B"), ("x", "")])

    assert capsys.readouterr().out == "slot            kept\nheadwater_shop  1 B\nx\n"


def test_a_table_on_a_terminal_has_all_cells_as_they_are(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("slot", "note"), [("shop", "[red]not markup[/red]")], ["yellow"])

    assert "[red]not markup[/red]" in capsys.readouterr().out
