"""How people write durations and sizes: `500ms`, `7 days`, `32MiB`. Pure."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)")
_SECONDS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES: Final = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def parse_duration(text: str) -> timedelta:
    """Raises ValueError for what is none."""
    seconds = _amount(text, _SECONDS, "a duration such as 500ms, 2s or 1m")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as exc:
        raise ValueError("must be a shorter duration") from exc


def parse_size(text: str) -> int:
    """Bytes; raises ValueError for what is no size."""
    return round(_amount(text, _BYTES, "a size such as 512KiB or 32MiB"))


def _amount(text: str, units: Mapping[str, float], what: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found["unit"] not in units:
        raise ValueError(f"must be {what}")
    return float(found["number"]) * units[found["unit"]]
