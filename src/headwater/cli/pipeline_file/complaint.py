"""What is wrong with a file, in sentences: the key, the fault, and the nearest right key or the values that are allowed."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headwater.cli.pipeline_file.values import Path

_NAME_PATTERN: Final = "must be 1 to 63 letters, digits, `_`, `-` and `.`, and begin with a letter or a digit"
# How alike a key has to be to be taken for a slip of another: `exchnge` and `exchange` are, `namespace` and `name` are not.
_NEAR: Final = 0.7
_PLAIN: Final = MappingProxyType(
    {
        "Input should be a valid string": "must be a string",
        "Input should be a valid integer": "must be a whole number",
        "Input should be a valid boolean": "must be true or false",
        "Input should be a valid tuple": "must be a list",
        "Input should be a valid dictionary": "must be a table",
    }
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Which keys a file may have, and where.

    `kinds` are tables, or lists of tables, whose keys are told by their `type`; `sections` are tables where a key that
    stands in the wrong place may belong to, and `inner` those within others.
    """

    file: type[BaseModel]
    kinds: Mapping[str, Mapping[str, type[BaseModel]]]
    sections: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    inner: Mapping[str, type[BaseModel]] = field(default_factory=dict)

    def path(self, details: ErrorDetails) -> Path:
        """Where a fault is; pydantic puts the type of a table behind its place, which the file does not."""
        location = details["loc"]
        if location and location[0] in self.kinds:
            tag = 2 if len(location) > 1 and isinstance(location[1], int) else 1
            if len(location) > tag and location[tag] in self.kinds[str(location[0])]:
                location = (*location[:tag], *location[tag + 1 :])
        return (*location, "type") if details["type"].startswith("union_tag") else location

    def is_of_another_kind(self, location: Path) -> bool:
        """Whether an unknown key is one of the same table with another `type`, so that it is not of another place."""
        match [part for part in location if isinstance(part, str)]:
            case [table, _type, key] if table in self.kinds:
                return any(key in model.model_fields for model in self.kinds[table].values())
        return False

    def keys(self, location: Path) -> list[str]:
        """Those that there are beside an unknown one."""
        *tables, _ = (part for part in location if isinstance(part, str))
        model = self.file
        for place, part in enumerate(tables):
            kinds = self.kinds.get(tables[place - 1], {}) if place == 1 else {}
            model = kinds.get(part) or self.inner.get(part) or self.sections.get(part) or model
        return list(model.model_fields)


def complaints(error: ValidationError, shape: Shape) -> list[tuple[Path, str]]:
    """All that pydantic found, each as the path to the key and what is wrong there. No value of the file is repeated."""
    found = [
        (shape.path(details), _fault(details, shape)) for details in error.errors(include_url=False, include_input=False)
    ]
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


def _fault(details: ErrorDetails, shape: Shape) -> str:
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return _unknown(details["loc"], shape)
        case "missing":
            return "is missing"
        case "union_tag_not_found":
            return f"is missing; write one of {', '.join(shape.kinds[str(details['loc'][0])])}"
        case "union_tag_invalid":
            return f"must be one of {', '.join(shape.kinds[str(details['loc'][0])])}"
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


def _unknown(location: Path, shape: Shape) -> str:
    *_, key = location
    keys = shape.keys(location)
    near = difflib.get_close_matches(str(key), keys, n=1, cutoff=_NEAR)
    if near:
        return f"there is no such key; did you mean `{near[0]}`?"
    if shape.is_of_another_kind(location):
        return f"there is no such key for this type; there are {', '.join(keys)}"
    if key in shape.file.model_fields:
        return "there is no such key here; it belongs to the top of the file"
    for section, model in shape.sections.items():
        if key in model.model_fields:
            return f"there is no such key here; it belongs to [{section}]"
    return f"there is no such key; there are {', '.join(keys)}"
