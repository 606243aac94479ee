"""The JSON that an HTTP API is sent for a message: a form of our own, or one that is filled in. Pure.

In a form of the user's, a string that is `{to}` stands for the value of that key, and `{subject}` inside of a longer string
for its text. `{to:email}` is the bare addresses, and `{to:object}` objects with `email` and `name`. Keys whose value is
missing or empty are left out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from headwater.comms.address import Address, parse_address
from headwater.comms.mime import Letter

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

_WHOLE: Final = re.compile(r"\{([a-z_]+(?::[a-z]+)?)\}")


def _written(one: Address) -> Json:
    return str(one.header()) if one.name else one.address


def _object(one: Address) -> Json:
    return {"email": one.address, "name": one.name} if one.name else {"email": one.address}


def _email(one: Address) -> Json:
    return one.address


def _name(one: Address) -> Json:
    return one.name


_FORMS: Final[Mapping[str, Callable[[Address], Json]]] = {
    "": _written,
    ":email": _email,
    ":object": _object,
}
_ADDRESSES: Final = ("to", "cc", "bcc")
_PLAIN: Final = ("id", "message_id", "subject", "text", "html", "headers", "attachments")
FIELDS: Final = (
    *_PLAIN,
    *(f"{name}{form}" for name in ("from", *_ADDRESSES) for form in _FORMS),
    "from:name",
)


def values_of(letter: Letter) -> dict[str, Json]:
    """All that a form may name."""
    email = letter.email
    found: dict[str, Json] = {
        "id": letter.id,
        "message_id": letter.message_id,
        "subject": email.subject,
        "text": email.text,
        "html": email.html,
        "headers": dict(email.headers),
        "attachments": [one.model_dump(mode="json") for one in email.attachments],
        "from:name": _name(letter.sender),
    }
    wanted = {one.address for one in letter.recipients}
    for form, made in _FORMS.items():
        found[f"from{form}"] = made(letter.sender)
        for name, written in zip(_ADDRESSES, (email.to, email.cc, email.bcc), strict=True):
            found[f"{name}{form}"] = [made(one) for one in map(parse_address, written) if one.address in wanted]
    return found


def default_body(letter: Letter) -> dict[str, Json]:
    values = values_of(letter)
    keys = ("id", "from", *_ADDRESSES, "subject", "text", "html", "headers", "attachments")
    return {key: values[key] for key in keys if not _is_empty(values[key])}


def fill(form: Any, values: Mapping[str, Json]) -> Json:
    """The form with its places filled; what is empty then is left out of objects."""
    match form:
        case str():
            whole = _WHOLE.fullmatch(form)
            return values[whole[1]] if whole else _WHOLE.sub(lambda found: _text(values[found[1]]), form)
        case Mapping():
            filled = {key: fill(inner, values) for key, inner in form.items()}
            return {key: value for key, value in filled.items() if not (_is_place(form[key]) and _is_empty(value))}
        case list() | tuple():
            return [fill(inner, values) for inner in form]
        case _:
            return form  # type: ignore[no-any-return] # a number, true or false of TOML


def form_faults(form: Any) -> list[str]:
    """What cannot be filled in, in sentences."""
    match form:
        case str():
            return [_unknown(name) for name in _WHOLE.findall(form) if name not in FIELDS]
        case Mapping():
            return [fault for inner in form.values() for fault in form_faults(inner)]
        case list() | tuple():
            return [fault for inner in form for fault in form_faults(inner)]
        case bool() | int() | float():
            return []
        case _:
            return ["body of the HTTP API has a date; write it as a string"]


def _unknown(name: str) -> str:
    return f"body of the HTTP API names {{{name}}}, which no message has; there are {', '.join(FIELDS)}"


def _is_place(form: object) -> bool:
    return isinstance(form, str) and _WHOLE.fullmatch(form) is not None


def _is_empty(value: Json) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _text(value: Json) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return ", ".join(map(_text, value))
        case _:
            return str(value)
