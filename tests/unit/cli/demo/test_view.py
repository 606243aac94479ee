"""What the demo shows while it runs."""

import io
from collections import Counter

import pytest
from rich.console import Console

from headwater.cli.demo.view import LineView, LiveView, Progress, choose_view
from headwater.model import Op

PROGRESS = Progress(
    written=Counter({("item", Op.INSERT): 1234, ("item", Op.UPDATE_KEY): 5}),
    delivered={"item": 1230},
    rate=4321.0,
    lag=0.25,
    behind=2048,
)
SUMMARY = "1,239 changes written, 1,230 delivered, 4,321 rows/s, lag 0.2 s, 2.0 KiB"


def drawn(view):
    screen = io.StringIO()
    Console(file=screen, width=80).print(view._render())
    return screen.getvalue()


def test_without_a_terminal_progress_comes_in_lines_on_standard_error(capsys):
    with choose_view() as view:
        view.step("Starting")
        view.begin(15)
        view.show(PROGRESS)
        view.show(PROGRESS)

    output = capsys.readouterr()
    assert output.out == ""
    lines = [line.split("s  ", 1)[1] for line in output.err.splitlines()]
    # The last one comes too soon after the one before it.
    assert lines == ["Starting", "writing for 15 s, and delivering", f"mixed traffic: {SUMMARY}"]
    assert isinstance(view, LineView)


def test_on_a_terminal_the_step_is_shown_before_there_are_figures():
    view = LiveView()
    view.step("Starting a private PostgreSQL")

    assert "Starting a private PostgreSQL" in drawn(view)
    assert "inserts" not in drawn(view)


def test_on_a_terminal_all_figures_fit_into_eighty_columns():
    view = LiveView()
    view.begin(15)
    view.show(PROGRESS)

    text = drawn(view)
    assert SUMMARY in text
    assert "of 15 s" in text
    row = next(line.split() for line in text.splitlines() if line.strip().startswith("item"))
    assert row == ["item", "1,234", "-", "5", "-", "-", "1,230"]
    assert "…" not in text


@pytest.mark.parametrize(
    ("progress", "phase"),
    [
        (Progress(), "mixed traffic"),
        (Progress(is_loading=True), "mixed traffic, and a transaction of 100,000 rows"),
        (Progress(is_loading=True, is_written=True), "all is written; delivering the rest"),
    ],
)
def test_the_phase_says_what_is_going_on(progress, phase):
    assert progress.phase == phase
