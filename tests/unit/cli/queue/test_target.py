"""Finding the worker of an application by name, and what is said if it is not there."""

import sys

import pytest

from headwater.cli.queue.target import load_worker
from headwater.errors import SettingsError

MODULE = """
from headwater.queue import Worker
worker, mail = Worker(), Worker("mail")
class shop:
    worker = Worker("shop")
handlers = {}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize(("name", "queues"), [("worker", ("default",)), ("mail", ("mail",)), ("shop.worker", ("shop",))])
def test_a_worker_is_found_from_the_current_directory_on(here, name, queues):
    (here / "application").mkdir()
    (here / "application" / "tasks_1.py").write_text(MODULE)
    assert load_worker(f"application.tasks_1:{name}").queues == queues


@pytest.mark.parametrize("target", ["tasks", "tasks:", ":worker", ""])
def test_what_names_no_worker_is_refused_with_what_would(here, target):
    with pytest.raises(SettingsError, match=r"names no worker; write it as MODULE:WORKER, such as shop.jobs:worker"):
        load_worker(target)


@pytest.mark.parametrize(
    ("target", "missing"), [("nowhere_1:worker", "nowhere_1"), ("headwater.nowhere:w", "headwater.nowhere")]
)
def test_a_module_that_is_not_there_is_named_with_the_directory(here, target, missing):
    with pytest.raises(SettingsError) as caught:
        load_worker(target)
    assert str(caught.value).startswith(f"there is no module {missing} in {here}, and none is installed; ")


def test_an_attribute_that_is_not_there_is_answered_with_the_workers_that_are(here):
    (here / "tasks_2.py").write_text(MODULE)
    with pytest.raises(SettingsError, match=r"^module tasks_2 has no 'wroker'; its workers are: mail, worker$"):
        load_worker("tasks_2:wroker")
    with pytest.raises(SettingsError, match=r"^tasks_2:handlers is a dict and no headwater.queue.Worker; its workers are: "):
        load_worker("tasks_2:handlers")


def test_a_module_without_a_worker_is_told_how_to_make_one(here):
    (here / "tasks_3.py").write_text("x = 1")
    with pytest.raises(SettingsError, match=r"no 'worker'; there is no worker in it; make one with `worker = "):
        load_worker("tasks_3:worker")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import not_installed_at_all", "ModuleNotFoundError: No module named 'not_installed_at_all'"),
        ("x = (", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "from headwater.queue import Worker\nw = Worker()\n@w.handler('a')\ndef f(job): ...",
            "JobError: the handler of 'a' is no async",
        ),
    ],
)
def test_a_module_that_fails_is_told_with_what_it_failed_with(here, text, said):
    (here / "tasks_4.py").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_worker("tasks_4:worker")
    assert str(caught.value).startswith(f"module tasks_4 cannot be imported: {said}")
