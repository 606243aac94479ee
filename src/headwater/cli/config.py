"""What the command line and the environment may set: the only place that names an environment variable of ours.

Without a URL, libpq's own variables (PGHOST, PGUSER, PGPASSWORD, PGSERVICE, ...) and files count, as they do for psql.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO, TypeAlias

import typer


class LogLevel(StrEnum):
    """How much to log, from most to least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


Url: TypeAlias = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HEADWATER_URL",
        metavar="URL",
        show_default=False,
        help="The database, as postgresql://user@host:5432/database or 'host=... dbname=...'. Whatever is open comes from "
        "PGHOST, PGUSER, PGPASSWORD and the like; a password is best kept there or in ~/.pgpass.",
    ),
]
File: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="PATH",
        show_default="headwater.toml",
        help="The pipeline file, which `headwater init` writes.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Level: TypeAlias = Annotated[
    LogLevel,
    typer.Option(
        "--log-level", envvar="HEADWATER_LOG_LEVEL", case_sensitive=False, help="How much to log, to standard error."
    ),
]
Format: TypeAlias = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar="HEADWATER_LOG_FORMAT",
        case_sensitive=False,
        show_default="text on a terminal, else json",
        help="How log lines look.",
    ),
]


def environment() -> Mapping[str, str]:
    """What pipeline files may refer to by `${NAME}`, and where Java is looked for."""
    return os.environ


def wants_color(stream: TextIO) -> bool:
    """Whether to colour what goes there: a terminal that can, unless NO_COLOR says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
