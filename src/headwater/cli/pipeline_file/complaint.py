"""What is wrong with a file, in sentences: the key, the fault, and the nearest right key or the values that are allowed."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headwater.cli.pipeline_file.model import (
    Columns,
    ConsoleSink,
    File,
    KafkaSink,
    NatsSink,
    NoopSink,
    OutboxSource,
    ParquetSink,
    PostgresSink,
    RabbitmqSink,
    ServiceBusSink,
    Source,
    Transform,
)
from headwater.cli.pipeline_file.values import Path

_SINKS: Final[Mapping[str, type[BaseModel]]] = MappingProxyType(
    {
        "postgres": PostgresSink,
        "parquet": ParquetSink,
        "nats": NatsSink,
        "rabbitmq": RabbitmqSink,
        "servicebus": ServiceBusSink,
        "kafka": KafkaSink,
        "console": ConsoleSink,
        "noop": NoopSink,
    }
)
_SOURCES: Final[Mapping[str, type[BaseModel]]] = MappingProxyType({"changes": Source, "outbox": OutboxSource})
_SECTIONS: Final[Mapping[str, type[BaseModel]]] = MappingProxyType({"source": Source, "transform": Transform})
_NAME_PATTERN: Final = "must be 1 to 63 letters, digits, `_`, `-` and `.`, and begin with a letter or a digit"
_PLAIN: Final = MappingProxyType(
    {
        "Input should be a valid string": "must be a string",
        "Input should be a valid integer": "must be a whole number",
        "Input should be a valid boolean": "must be true or false",
        "Input should be a valid tuple": "must be a list",
        "Input should be a valid dictionary": "must be a table",
    }
)


def complaints(error: ValidationError) -> list[tuple[Path, str]]:
    """All that pydantic found, each as the path to the key and what is wrong there. No value of the file is repeated."""
    found = [(_path(details), _fault(details)) for details in error.errors(include_url=False, include_input=False)]
    # Of a list whose entries are wrong pydantic says that it is empty, too.
    return [
        (path, fault)
        for path, fault in dict.fromkeys(found)
        if not any(len(other) > len(path) and other[: len(path)] == path for other, _ in found)
    ]


def shown(path: Path) -> str:
    """`sinks[1].url`, counting lists from 1 as people do."""
    text = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _path(details: ErrorDetails) -> Path:
    """Where the fault is; pydantic puts the type of a sink or source behind its place, which the file does not."""
    location = details["loc"]
    if location[:1] == ("source",) and len(location) > 1 and location[1] in _SOURCES:
        return (location[0], *location[2:])
    if location[:1] == ("sinks",) and len(location) > 2:
        return (*location[:2], *location[3:])
    if details["type"].startswith("union_tag"):
        return (*location, "type")
    return location


def _fault(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return _unknown(details["loc"])
        case "union_tag_invalid" if details["loc"] == ("source",):
            return f"must be one of {', '.join(_SOURCES)}"
        case "missing" | "union_tag_not_found":
            return "is missing" + (f"; write one of {', '.join(_SINKS)}" if details["type"] != "missing" else "")
        case "union_tag_invalid":
            return f"must be one of {', '.join(_SINKS)}"
        case "enum":
            return f"must be {str(context['expected']).replace(chr(39), '')}"
        case "too_short":
            return "must have at least one entry"
        case "string_pattern_mismatch":
            return _NAME_PATTERN
        case "value_error":
            return str(context["error"])
        case _:
            return _plain(details["msg"])


def _plain(message: str) -> str:
    """Pydantic's words, in ours where they are about Python rather than TOML."""
    return next(
        (ours for theirs, ours in _PLAIN.items() if message.startswith(theirs)),
        message.removeprefix("Input ").replace("should be", "must be", 1),
    )


def _unknown(location: Path) -> str:
    *_, key = location
    keys = _keys(location)
    near = difflib.get_close_matches(str(key), keys, n=1)
    if near:
        return f"there is no such key; did you mean `{near[0]}`?"
    if key in File.model_fields:
        return "there is no such key here; it belongs to the top of the file"
    for section, model in _SECTIONS.items():
        if key in model.model_fields:
            return f"there is no such key here; it belongs to [{section}]"
    return f"there is no such key; there are {', '.join(keys)}"


def _keys(location: Path) -> list[str]:
    match location:
        case ("sinks", int(), str(kind), _):
            model: type[BaseModel] = _SINKS[kind]
        case ("source", str(kind), "columns", _):
            model = Columns
        case ("source", str(kind), _) if kind in _SOURCES:
            model = _SOURCES[kind]
        case (str(section), _) if section in _SECTIONS:
            model = _SECTIONS[section]
        case _:
            model = File
    return list(model.model_fields)
