"""Sessions of SQLAlchemy where it is not installed."""

import subprocess
import sys


def test_without_sqlalchemy_the_extra_is_named():
    code = "import sys; sys.modules['sqlalchemy'] = None; import headwater.outbox.sqlalchemy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "SettingsError: SQLAlchemy 2 is needed" in done.stderr
    assert "run `pip install 'headwater[sqlalchemy]'`" in done.stderr
