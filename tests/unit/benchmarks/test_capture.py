"""The benchmark of capture: what its client process is told, and how."""

import subprocess
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from benchmarks.capture import __main__ as capture
from benchmarks.capture.large_transaction import URL_VARIABLE
from benchmarks.wal_bench import Bench


def test_the_client_gets_the_url_where_other_users_cannot_read_it(monkeypatch):
    started: dict[str, Any] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.update(options, command=command))

    capture.start_client("postgresql://me:hunter2@h/d", "big", "/spill", 5)

    assert "hunter2" not in " ".join(started["command"])
    assert started["env"][URL_VARIABLE] == "postgresql://me:hunter2@h/d"


def test_rows_that_are_lost_and_files_that_are_left_are_measured_and_missed(monkeypatch):
    output = '{"rows": 7, "distinct": 6, "open_spills": 1, "peak_rss_mb": 100.0}'
    client = SimpleNamespace(communicate=lambda: (output, None), returncode=0, poll=lambda: None)
    bench = Bench(Mock(url=""), Mock())
    monkeypatch.setattr(Bench, "execute", lambda *_args: None)
    monkeypatch.setattr(Bench, "scalar", lambda _bench, statement: statement.name == "is_active")
    monkeypatch.setattr(Bench, "drop", lambda *_args: None)
    monkeypatch.setattr(capture, "start_client", lambda *_args: client)
    monkeypatch.setattr(capture, "write_and_roll_back", lambda *_args: 1 << 20)
    monkeypatch.setattr(capture, "streamed_bytes", lambda *_args: 3 << 20)

    bars = {bar.name: (bar.value, bar.ok) for bar in capture.big_transaction(bench, 10)}

    assert bars["big_transaction_rows_lost"] == (4.0, False)
    assert bars["big_transaction_files_left"] == (1.0, False)
    assert bars["big_transaction_rss_mb"] == (100.0, True)
    assert bench.figures["big_transaction_rows_surplus"] == 1
    assert bench.figures["big_transaction_aborted_streamed_mb"] == 1
    assert bench.figures["big_transaction_streamed_mb"] == 2
