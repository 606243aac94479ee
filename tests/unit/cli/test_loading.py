"""The bars of tables that are being read as a whole."""

import io

from rich.console import Console

from headwater.capture.tables import PipelineTable
from headwater.cli.loading import LoadingView


def _table(name: str, state: str = "wanted", *, done: int = 0, total: int = 4, attempt: str | None = "a") -> PipelineTable:
    return PipelineTable(
        schema="public",
        name=name,
        state=state,  # type: ignore[arg-type] # one of the words of the column
        is_added=False,
        request=1,
        is_due=True,
        error=None,
        snapshot=None,
        until_lsn=None,
        attempt=attempt,
        pieces_done=done,
        pieces_total=total,
        rows_estimate=1000,
        table_oid=None,
    )


def _shown(*looks: list[PipelineTable]) -> str:
    written = io.StringIO()
    with LoadingView(Console(file=written, force_terminal=True, width=120, color_system=None)) as view:
        for tables in looks:
            view.show(tables)
            view._progress.refresh()
        return written.getvalue()


def test_a_table_that_is_read_has_a_bar_with_rows_and_an_estimate():
    shown = _shown([_table("item", done=1)], [_table("item", done=3)])

    assert "public.item" in shown
    assert "250 of about 1,000 rows" in shown and "750 of about 1,000 rows" in shown
    assert " 75%" in shown


def test_a_table_that_waits_for_its_turn_or_was_read_before_has_none():
    shown = _shown([_table("waits", attempt=None), _table("read", "streaming", done=4)])

    assert "public." not in shown


def test_the_bar_of_a_table_goes_when_it_is_read():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with LoadingView(console) as view:
        view.show([_table("item", done=2)])
        view.show([_table("item", "streaming", done=4)])
        (bar,) = view._progress.tasks
    assert (bar.finished, bar.visible) == (True, False)
