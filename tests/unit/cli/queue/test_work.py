"""`headwater queue work` without what not everybody has installed."""

import subprocess
import sys

import pytest

from headwater.cli.queue import work
from headwater.errors import SettingsError

_WITHOUT_EXTRAS = """
import sys
for name in ("prometheus_client", "starlette", "uvicorn", "cronsim", "opentelemetry"):
    sys.modules[name] = None
from headwater.cli.app import run
from headwater.queue import Worker
sys.exit(run(["queue", "work", "--help"]))
"""


def test_who_has_no_extras_can_work_all_the_same():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_cannot_answer_monitors_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(work, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(SettingsError, match=r"uvicorn is needed .* run `pip install 'headwater\[queue\]'`, or do without"):
        work._require_listening()
