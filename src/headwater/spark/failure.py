"""What Spark makes of an error of ours, read back: it hands on the text of a traceback, and a user wants the sentence."""

import re
from typing import Final

from pyspark.errors import PySparkException, StreamingQueryException

from headwater import errors
from headwater.errors import HeadwaterError, PipelineFailed

# An error of ours, as the last line of a Python traceback has it.
_OURS: Final = re.compile(r"^headwater\.errors\.(?P<name>\w+): (?P<said>.+)$", re.MULTILINE)
# The last line of any other traceback, and the first line of what Spark itself says.
_OTHERS: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): (?P<said>.+)$", re.MULTILINE)
_LONGEST = 500


def translate(error: BaseException) -> HeadwaterError:
    """The error of ours that Spark has wrapped, or one that says in a sentence what Spark said."""
    if isinstance(error, HeadwaterError):
        return error
    text = _text(error)
    found = list(_OURS.finditer(text))
    if found:
        return _again(found[-1]["name"], found[-1]["said"])
    others = list(_OTHERS.finditer(text))
    said = (
        f"{others[-1]['name']}: {others[-1]['said']}"
        if others
        else next(iter(text.strip().splitlines()), type(error).__name__)
    )
    return PipelineFailed(f"the pipeline failed, and nothing of its batch was confirmed: {said[:_LONGEST]}")


def _text(error: BaseException) -> str:
    """All that was said, the cause's last: a query's exception repeats that of the task or the planner."""
    said = str(error)
    if isinstance(error, StreamingQueryException | PySparkException):
        # The plan and the offsets follow; they say nothing to a user.
        said = said.partition("=== Streaming Query ===")[0]
    return said


def _again(name: str, said: str) -> HeadwaterError:
    """An error of the same class and the same message; its facts are lost on the way."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadwaterError)):
        return PipelineFailed(said)
    error = kind.__new__(kind)
    error.args = (said,)
    return error
