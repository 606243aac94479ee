"""A table of a file, and the values that many of them have: sizes, durations, places.

Whatever one kind of file has alone is with the model of that file, so that nothing of a broker is loaded for these.
"""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict

from headwater.cli.pipeline_file.values import Toml, flatten
from headwater.model.amount import parse_duration, parse_size

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def read_size(value: Toml) -> Toml:
    return parse_size(value) if isinstance(value, str) else value


def read_duration(value: Toml) -> timedelta:
    if not isinstance(value, str):
        raise ValueError("must be a duration such as 500ms, 2s or 1m")
    return parse_duration(value)


def read_table(value: Toml) -> Toml:
    return dict(flatten(value)) if isinstance(value, dict) else value


Size: TypeAlias = Annotated[int, BeforeValidator(read_size)]
Duration: TypeAlias = Annotated[timedelta, BeforeValidator(read_duration)]


class Section(BaseModel):
    """A table of the file: no other keys than its own, and no value ever repeated in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def place_of(place: str, base: Path) -> str:
    """A URI as it is; a path made absolute, so that it does not matter from where the program is started."""
    return place if _HAS_SCHEME.match(place) else str((base / place).resolve())
