"""The worker that an application has made, by the name of its module and of the variable."""

import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType

from headwater.errors import SettingsError
from headwater.queue import Worker

_log = logging.getLogger(__name__)


def load_worker(target: str) -> Worker:
    """The worker of `module:worker`, looked for from the current directory on; SettingsError says what is there instead."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise SettingsError(f"{target!r} names no worker; write it as MODULE:WORKER, such as shop.jobs:worker")
    found = _module(module)
    value: object = found
    for part in name.split("."):
        if not hasattr(value, part):
            raise SettingsError(f"module {module} has no {name!r}; {_others(found)}")
        value = getattr(value, part)
    if not isinstance(value, Worker):
        raise SettingsError(f"{target} is a {type(value).__name__} and no headwater.queue.Worker; {_others(found)}")
    return value


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (exc.name == name or name.startswith(f"{exc.name}.")):
            raise SettingsError(
                f"there is no module {exc.name} in {here}, and none is installed; start it where the module is, or correct "
                "its name"
            ) from exc
        raise _broken(name, exc) from exc
    except Exception as exc:
        # Whatever the application's own code raises.
        raise _broken(name, exc) from exc


def _broken(name: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"module {name} cannot be imported: {type(error).__name__}: {error}; correct it, `--log-level debug` shows where"
    )


def _others(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Worker))
    if not names:
        return "there is no worker in it; make one with `worker = headwater.queue.Worker()`"
    return f"its workers are: {', '.join(names)}"
