"""The servers that tests ask for by name: started when first wanted, they live as long as the run or its worker."""

import faulthandler
import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

# Before numpy is loaded, here or in a program that a test starts: its threads would spin for 0.1 s each time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedNats, EmbeddedPostgres
from tests.support.brokers.rabbitmq_node import RabbitmqNode, start_rabbitmq
from tests.support.failpoints import require_fired
from tests.support.leak_guard import LeakGuard, root_logger_restored
from tests.support.servers.embedded import MAJORS, fresh_database, start_nats, start_postgres
from tests.support.servers.spark_session import quick_session

# Tests that run in the background of a shell, and the programs that they start, would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# These would leave servers behind: they end the run as Ctrl-C does.
for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_DFL:
        signal.signal(_number, signal.default_int_handler)

# How long an example takes says more about the machine than about the code. The same examples each time; `make soak` tries
# others, and more of them.
_QUIET = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile(
    "test", deadline=None, suppress_health_check=_QUIET, max_examples=25, derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "soak", deadline=None, suppress_health_check=_QUIET, max_examples=400, derandomize=False, database=None
)
hypothesis.settings.load_profile("test")


# The folders of each turn, by the longest files: those of a worker that are left at the end are short. In the first turn,
# stories that keep a core busy are mixed with tests of brokers, which mostly wait.
_TURNS = (
    ("acceptance", "conformance", "integration/brokers", "integration/cli", "integration/outbox", "integration/spark"),
    ("integration", "repository"),
    ("unit",),
)
# Ending the servers of a worker on a busy machine takes a part of it.
_TEARDOWN_SECONDS = 120


def pytest_configure(config: pytest.Config) -> None:
    # With workers, the process that directs them runs no tests, and would not say which path it was that they did not find.
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        for argument in config.args:
            if not Path(config.invocation_params.dir, argument.partition("::")[0]).exists():
                raise pytest.UsageError(f"file or directory not found: {argument}")
        return
    config.pluginmanager.register(LeakGuard(os.environ.get("PYTEST_XDIST_WORKER", "alone")), "leak guard")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the files as they were shuffled, but by the turns of their folders."""
    root = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        path = item.path.relative_to(root).as_posix()
        return next(
            number for number, folders in enumerate(_TURNS) if any(path.startswith(f"{folder}/") for folder in folders)
        )

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Leave what was loaded and collected out of later collections of garbage, each of which took 0.3 s otherwise."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Bound the time of a teardown, also after a test that has used up its own.

    The servers of a worker end after its last test: their time, which they bound themselves, is not that test's. A teardown
    that hangs ends the worker, which says where it hung, and the run with it.
    """
    if nextitem is None:
        item.config.pluginmanager.hook.pytest_timeout_cancel_timer(item=item)
    stderr = item.config.stash.get(fault_handler_stderr_fd_key, 2)
    faulthandler.dump_traceback_later(_TEARDOWN_SECONDS, file=stderr, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Give the root logger back after each test."""
    with root_logger_restored():
        yield


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Require that failpoints which the test arms fire, and have logs look as pytest has them.

    A logger of PySpark gives each handler a formatter of its own, also when pytest adds its handlers for a test: hence last.
    """
    logs = item.config.pluginmanager.get_plugin("logging-plugin")
    if logs is not None:
        for handler in (logs.caplog_handler, logs.report_handler):
            handler.setFormatter(logs.formatter)
    with require_fired():
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what stories counted, such as changes lost and repeated, also when they passed."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "counts" and report.when == "call":
                    terminalreporter.write_line(str(value))


@pytest.fixture(scope="session")
def postgres18() -> Iterator[EmbeddedPostgres]:
    yield from start_postgres(18)


@pytest.fixture(scope="session")
def postgres16() -> Iterator[EmbeddedPostgres]:
    yield from start_postgres(16)


@pytest.fixture(scope="session")
def postgres15() -> Iterator[EmbeddedPostgres]:
    yield from start_postgres(15)


@pytest.fixture(scope="session")
def nats() -> Iterator[EmbeddedNats]:
    yield from start_nats()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitmqNode]:
    yield from start_rabbitmq()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the tests of a worker; tests that ask for it set a longer time limit."""
    with quick_session() as session:
        yield session


@pytest.fixture
def database(postgres18: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a new database on PostgreSQL 18."""
    with fresh_database(postgres18.url) as url:
        yield url


@pytest.fixture(params=MAJORS, ids=[f"postgres{major}" for major in MAJORS])
def any_postgres(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    """Each version in turn."""
    server: EmbeddedPostgres = request.getfixturevalue(f"postgres{request.param}")
    return server


@pytest.fixture
def any_database(any_postgres: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a new database, on each version in turn."""
    with fresh_database(any_postgres.url) as url:
        yield url
