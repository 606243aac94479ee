"""What is wrong with messages, in sentences: the place in the request, the fault, and the nearest right key. Pure."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headwater.comms.message import Attachment, Email

# How alike a key has to be to be taken for a slip of another.
_NEAR: Final = 0.7
_PLAIN: Final = {
    "string_type": "must be a string",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object of strings",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "missing": "is missing",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where: the message by its place in the request, counted from 0, and the key in it, or nothing."""

    message: int
    field: str
    fault: str

    def __str__(self) -> str:
        return f"message {self.message}: {self.field}{': ' if self.field else ''}{self.fault}"


def faults_of(error: ValidationError, message: int = 0) -> list[Fault]:
    """All that pydantic found in one message. No value is repeated."""
    return [_fault(details, message) for details in error.errors(include_url=False, include_input=False)]


def sentence(error: ValidationError) -> str:
    """The same in one line, for a message that stands alone."""
    return "; ".join(f"{one.field}: {one.fault}" if one.field else one.fault for one in faults_of(error))


def _fault(details: ErrorDetails, message: int) -> Fault:
    field, kind = _shown(details["loc"]), details["type"]
    if kind == "extra_forbidden":
        return Fault(message, field, _unknown(details["loc"]))
    if kind == "value_error":
        said = str(details["ctx"]["error"])
        # What is wrong with a message as a whole names its key itself.
        own, colon, rest = said.partition(": ")
        return Fault(message, field, said) if field or not colon else Fault(message, own, rest)
    return Fault(message, field, _PLAIN.get(kind) or details["msg"].removeprefix("Input ").replace("should", "must", 1))


def _shown(location: Sequence[str | int]) -> str:
    """`attachments[1].name`, with lists counted from 0, as programs do."""
    parts = [part for part in location if part != "[key]"]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _unknown(location: Sequence[str | int]) -> str:
    model: type[BaseModel] = Attachment if "attachments" in location[:-1] else Email
    keys = [one.serialization_alias or name for name, one in model.model_fields.items()]
    near = difflib.get_close_matches(str(location[-1]), keys, n=1, cutoff=_NEAR)
    return (
        f"there is no such key; did you mean `{near[0]}`?" if near else f"there is no such key; there are {', '.join(keys)}"
    )
