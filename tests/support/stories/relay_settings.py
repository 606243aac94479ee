"""Settings of relays in stories, in a module that the programs of stories import quickly."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

# Quick to take over and to try again, for stories that do not last an hour.
QUICK: Final[Mapping[str, Any]] = {
    "lease": timedelta(seconds=6),
    "confirm_timeout": timedelta(seconds=2),
    "revive_every": timedelta(milliseconds=500),
    "retry_wait": timedelta(milliseconds=200),
    "longest_wait": timedelta(seconds=2),
    "max_attempts": 1000,
    "retention": None,
}
