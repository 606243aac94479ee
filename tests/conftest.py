"""The servers that tests ask for by name: started when first wanted, they live as long as the run or its worker."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedNats, EmbeddedPostgres
from tests.servers import MAJORS, fresh_database, start_nats, start_postgres
from tests.spark import quick_session

# Whoever starts the tests in the background of a shell has them, and the programs that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("headwater", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("headwater")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The servers of a worker end after its last test: their time, which they bound themselves, is not that test's."""
    if nextitem is None:
        item.config.pluginmanager.hook.pytest_timeout_cancel_timer(item=item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Logs look as pytest has them: a logger of PySpark gives each handler a formatter of its own, which stays."""
    logs = item.config.pluginmanager.get_plugin("logging-plugin")
    if logs is not None:
        for handler in (logs.caplog_handler, logs.report_handler):
            handler.setFormatter(logs.formatter)


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
def spark() -> Iterator[SparkSession]:
    """Tests that ask for it stand in the xdist group `spark`, so that one worker starts it, and set a longer time limit."""
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
