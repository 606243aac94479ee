"""`headwater topics describe`: all that is known of a topic."""

import typer

from headwater.cli.config import Json, Url
from headwater.cli.output import print_json, print_table
from headwater.cli.session import session
from headwater.cli.topics.groups import Name, print_readers, readers
from headwater.cli.topics.groups import plain as plain_reader
from headwater.cli.topics.keep import segment_rows
from headwater.cli.topics.setup import facts, plain
from headwater.postgres.statements import fetch_sync
from headwater.topics import find_sync, require_topics
from headwater.topics.operate_statements import measure_topics
from headwater.topics.retention_statements import read_segments
from headwater.topics.statements import read_bounds


def describe(name: Name, url: Url = "", json: Json = False) -> None:
    """Show a topic: what it takes and keeps, its partitions from the oldest message to the next, and who reads it.

    Examples:

        headwater topics describe orders
        headwater topics describe orders --json
    """
    with session(url) as connection:
        require_topics(connection)
        topic = find_sync(connection, name)
        bounds = fetch_sync(connection, read_bounds(topic.id))
        (measured,) = (one for one in fetch_sync(connection, measure_topics()) if one.id == topic.id)
        segments = fetch_sync(connection, read_segments(topic.id))
        found = readers(connection, name)
    messages = sum(one.next_offset - one.first_offset for one in bounds)
    if json:
        ends = [{"partition": one.partition, "oldest": one.first_offset, "next": one.next_offset} for one in bounds]
        print_json({**plain(topic, measured, messages), "bounds": ends, "readers": [plain_reader(one) for one in found]})
        return
    print_table(("topic", topic.name), facts(topic, measured))
    typer.echo()
    rows = [
        tuple(
            f"{count:,}" for count in (one.partition, one.first_offset, one.next_offset, one.next_offset - one.first_offset)
        )
        for one in bounds
    ]
    print_table(("partition", "oldest", "next", "messages"), rows)
    typer.echo()
    print_table(("segment", "state", "size", "up to offset", "up to"), segment_rows(segments))
    if found:
        typer.echo()
        print_readers(found)
