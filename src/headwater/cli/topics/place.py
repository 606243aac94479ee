"""Places in a topic as people write them: an end of it, an offset, or a time."""

from collections.abc import Mapping
from typing import Final

from headwater.cli.moment import parse_time
from headwater.errors import SettingsError
from headwater.topics.subscribe_settings import Start

_ENDS: Final[Mapping[str, Start]] = {"earliest": "earliest", "latest": "latest"}


def parse_place(option: str, text: str) -> Start:
    """`earliest` or `latest` as they are, an offset, or a time; SettingsError for anything else."""
    if text in _ENDS:
        return _ENDS[text]
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_time(option, text)
    except SettingsError as exc:
        if "time zone" in str(exc):
            raise
        raise SettingsError(
            f"{option} must be earliest, latest, an offset such as 42, or a time such as 2026-11-16T10:00:00Z, not {text!r}"
        ) from exc
