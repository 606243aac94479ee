"""Log lines for people and for programs."""

import io
import json
import logging

from headwater.cli.config import LogFormat, LogLevel
from headwater.cli.logs import configure

logger = logging.getLogger("headwater.test")


def logged(style, least=LogLevel.INFO, **extra):
    stream = io.StringIO()
    configure(least, style, stream)
    logger.debug("too little to be worth a word")
    logger.warning("slot %s lags", "shop", extra=extra)
    return stream.getvalue()


def test_text_has_level_logger_message_and_facts():
    line = logged(LogFormat.TEXT, slot="shop", lsn="0/1")

    assert line.split(" ", 1)[1] == "warning headwater.test: slot shop lags slot=shop lsn=0/1\n"


def test_json_is_one_object_a_line_with_the_facts_as_fields():
    line = json.loads(logged(LogFormat.JSON, slot="shop"))

    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "warning", "logger": "headwater.test", "message": "slot shop lags", "slot": "shop"}


def test_what_a_call_adds_takes_the_place_of_no_field_that_every_line_has():
    line = json.loads(logged(LogFormat.JSON, level="odd", time="never", logger="mine"))

    assert (line["level"], line["logger"]) == ("warning", "headwater.test")
    assert line["time"] != "never"
    assert list(line) == ["time", "level", "logger", "message"]


def test_json_carries_a_traceback_on_the_same_line():
    stream = io.StringIO()
    configure(LogLevel.ERROR, LogFormat.JSON, stream)
    try:
        raise ValueError("odd")
    except ValueError:
        logger.exception("failed")

    assert "ValueError: odd" in json.loads(stream.getvalue())["exception"]


def test_debug_shows_everything():
    assert "too little" in logged(LogFormat.TEXT, LogLevel.DEBUG)


def test_what_is_below_the_level_is_not_shown():
    assert logged(LogFormat.TEXT, LogLevel.ERROR) == ""


def test_without_a_style_a_stream_that_is_no_terminal_gets_json():
    assert logged(None).startswith("{")


def test_without_a_style_a_terminal_gets_text():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    configure(LogLevel.INFO, None, stream)
    logger.info("hello")

    assert stream.getvalue().endswith("info headwater.test: hello\n")


def test_clients_of_http_that_log_whole_addresses_are_silent_also_at_debug():
    configure(LogLevel.DEBUG, LogFormat.JSON, io.StringIO())
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
    assert not logging.getLogger("httpcore.http11").isEnabledFor(logging.DEBUG)
