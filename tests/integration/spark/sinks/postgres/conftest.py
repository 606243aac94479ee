"""A second database, which the sink writes to."""

from collections.abc import Iterator

import pytest

from headwater.embedded import EmbeddedPostgres
from tests.support.servers.embedded import fresh_database


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


@pytest.fixture
def any_target(any_postgres: EmbeddedPostgres) -> Iterator[str]:
    """On the same server as `any_database`."""
    with fresh_database(any_postgres.url) as url:
        yield url
