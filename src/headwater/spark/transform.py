"""The user's own transform: a filter, then SQL over a view or a function from DataFrame to DataFrame.

The view is called `changes`, or for an outbox `messages`.

What comes out has the columns that went in, so that sinks need not know whether there was a transform. Masks and hashes are
not here: the source applies them while it decodes, before anything else can see the values.
"""

import difflib
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.errors import TransformError
from headwater.spark.sentence import first_sentence
from headwater.spark.settings import TransformSettings
from headwater.spark.shape import ENVELOPE, MESSAGES, Shape

VIEW, MESSAGES_VIEW = "changes", "messages"


def apply_transform(changes: DataFrame, settings: TransformSettings, shape: Shape = Shape.ENVELOPE) -> DataFrame:
    """The changes after filter and the user's SQL or function, with the columns of `changes` in their order.

    Raises TransformError for whatever Spark, or the user's function, raises before a row is read.
    """
    result = changes
    if settings.filter is not None:
        with _explained("transform.filter"):
            result = result.filter(settings.filter)
    if settings.sql is not None:
        with _explained("transform.sql"):
            result.createOrReplaceTempView(_views(shape)[0])
            # The session of a micro-batch is not the one that started the stream.
            result = result.sparkSession.sql(settings.sql)
    if settings.function is not None:
        result = _call(settings.function, result)
    return _in_shape(result, shape)


def check_transform(spark: SparkSession, settings: TransformSettings, shape: Shape = Shape.ENVELOPE) -> None:
    """Try the transform on no changes at all, aside from the views and settings of the session."""
    apply_transform(spark.newSession().createDataFrame([], _views(shape)[1]), settings, shape)


def load_function(name: str) -> Callable[[DataFrame], object]:
    """The function that `module:function` names; modules are also looked for in the current directory."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise TransformError(f"transform.function is {name!r}, which names no function; write it as module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        raise TransformError(
            f"transform.function: module {module_name!r} cannot be imported ({_said(exc)}); install it, or put it into "
            f"{here}, where the program runs"
        ) from exc
    function: object = getattr(module, function_name, None)
    if not callable(function):
        near = difflib.get_close_matches(function_name, [key for key, value in vars(module).items() if callable(value)])
        hint = f"did you mean {near[0]}?" if near else "correct the name"
        raise TransformError(f"transform.function: module {module_name!r} has no function {function_name!r}; {hint}")
    return function


def _call(name: str, changes: DataFrame) -> DataFrame:
    function = load_function(name)
    try:
        result = function(changes)
    except PySparkException as exc:
        raise TransformError(f"transform.function {name}: {first_sentence(str(exc))}; correct the function") from exc
    except Exception as exc:
        raise TransformError(f"transform.function {name} raised {_said(exc)}; correct the function") from exc
    if not isinstance(result, DataFrame):
        raise TransformError(f"transform.function {name} returned {type(result).__name__}; it must return a DataFrame")
    return result


def _views(shape: Shape) -> tuple[str, StructType]:
    """The name and the columns of the view that a transform sees: messages of an outbox, or changes."""
    return (MESSAGES_VIEW, MESSAGES) if shape is Shape.MESSAGE else (VIEW, ENVELOPE)


def _in_shape(result: DataFrame, shape: Shape) -> DataFrame:
    """The result with the columns in order, if it has exactly those of the view."""
    view, columns = _views(shape)
    wanted = {field.name: field.dataType.simpleString() for field in columns}
    found = [(field.name, field.dataType.simpleString()) for field in result.schema]
    counts = Counter(name for name, _ in found)
    wrong = [
        *_listed("missing", [name for name in wanted if name not in counts]),
        *_listed("not wanted", [name for name in counts if name not in wanted]),
        *_listed("there twice", [name for name, count in counts.items() if count > 1]),
        *(f"{name} is {kind}, not {wanted[name]}" for name, kind in found if name in wanted and kind != wanted[name]),
    ]
    if wrong:
        raise TransformError(
            f"the transform must return the columns of `{view}`, and does not: {'; '.join(wrong)}; "
            f"select {', '.join(columns.fieldNames())}"
        )
    return result.select(*columns.fieldNames())


def _listed(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {', '.join(names)}"] if names else []


@contextmanager
def _explained(key: str) -> Iterator[None]:
    try:
        yield
    except PySparkException as exc:
        raise TransformError(f"{key}: {first_sentence(str(exc))}; correct the SQL") from exc


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
