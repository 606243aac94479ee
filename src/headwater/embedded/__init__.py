"""Private servers for the demo and the tests: PostgreSQL, NATS, and a Java for Spark, all from wheels.

They listen on 127.0.0.1 only, ask for a random password, and are stopped with whoever started them, at the latest by the
next start of any of them.
"""

from headwater.embedded.directory import state_directory
from headwater.embedded.java import resolve_java
from headwater.embedded.nats import EmbeddedNats, NatsSettings
from headwater.embedded.postgres import EmbeddedPostgres, PostgresSettings
from headwater.embedded.server import EmbeddedServer, url_or_embedded

__all__ = [
    "EmbeddedNats",
    "EmbeddedPostgres",
    "EmbeddedServer",
    "NatsSettings",
    "PostgresSettings",
    "resolve_java",
    "state_directory",
    "url_or_embedded",
]
