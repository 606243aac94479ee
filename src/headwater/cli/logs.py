"""Logs go to standard error: text for people, one JSON object a line for programs."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

from headwater.cli.config import LogFormat, LogLevel

# What every record has, so that only what a call added with `extra` is left.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """`12:30:01 warning headwater.postgres.listen: message key=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(word)s %(name)s: %(message)s%(facts)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={value}" for key, value in _extra(record).items())
        record.word, record.facts = record.levelname.lower(), facts
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """An object with time, level, logger, message, what was added with `extra`, and the traceback, if there is one.

    The names are stable, and in docs/guides/operations.md; what a call adds never takes the place of the first four.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line = {**line, **_extra(record), **line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: LogLevel, style: LogFormat | None, stream: TextIO | None = None) -> None:
    """Log what is at least `level`; without a style, text if the stream is a terminal and JSON otherwise."""
    target = stream or sys.stderr
    chosen = style or (LogFormat.TEXT if target.isatty() else LogFormat.JSON)
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter() if chosen is LogFormat.TEXT else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # They log whole addresses and headers, in which some providers want their keys.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD | {"word", "facts"}}
