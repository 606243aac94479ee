"""How single values are written: `${VARIABLE}` inside of strings, durations as `500ms`, sizes as `32MiB`. Pure."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final, TypeAlias

# What TOML gives, without dates, which no key takes.
Toml: TypeAlias = "str | int | float | bool | list[Toml] | dict[str, Toml]"
# Where a value stands: the keys, and the places in lists, that lead to it.
Path: TypeAlias = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<open>\$\{)")
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


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


def parse_duration(text: str) -> timedelta:
    seconds = _amount(text, _SECONDS, "a duration such as 500ms, 2s or 1m")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as exc:
        raise ValueError("must be a shorter duration") from exc


def parse_size(text: str) -> int:
    return round(_amount(text, _BYTES, "a size such as 512KiB or 32MiB"))


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


def _amount(text: str, units: Mapping[str, float], what: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found["unit"] not in units:
        raise ValueError(f"must be {what}")
    return float(found["number"]) * units[found["unit"]]
