"""How single values are written: `${VARIABLE}` inside of strings. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

# What TOML gives, without dates, which no key takes.
Toml: TypeAlias = "str | int | float | bool | list[Toml] | dict[str, Toml]"
# Where a value stands: the keys, and the places in lists, that lead to it.
Path: TypeAlias = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<open>\$\{)")


def interpolate(value: Toml, environ: Mapping[str, str], errors: dict[Path, str], path: Path = ()) -> Toml:
    """The value with `${VARIABLE}` replaced in all strings; what is wrong goes to `errors`, by its path."""
    match value:
        case str():
            return _filled(value, environ, errors, path)
        case dict():
            return {key: interpolate(inner, environ, errors, (*path, key)) for key, inner in value.items()}
        case list():
            return [interpolate(inner, environ, errors, (*path, place)) for place, inner in enumerate(value)]
        case _:
            return value


def flatten(table: Mapping[str, Toml], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their dotted names, also where TOML has read the dots as tables in tables; values as Spark writes them."""
    for key, value in table.items():
        match value:
            case dict():
                yield from flatten(value, f"{prefix}{key}.")
            case bool():
                yield f"{prefix}{key}", str(value).lower()
            case str() | int() | float():
                yield f"{prefix}{key}", str(value)
            case _:
                raise ValueError(f"{prefix}{key} must be a string, a number, true or false")


def _filled(text: str, environ: Mapping[str, str], errors: dict[Path, str], path: Path) -> str:
    def replaced(found: re.Match[str]) -> str:
        if found["open"]:
            errors[path] = "`${` is followed by no name and `}`; write `${NAME}`, or `$${` if it stands for itself"
        elif found["name"] and found["name"] not in environ:
            errors[path] = f"environment variable {found['name']} is not set; set it, or write the value itself"
        else:
            return environ[found["name"]] if found["name"] else "${"
        return ""

    return _REFERENCE.sub(replaced, text)
