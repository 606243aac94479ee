"""`headwater queue init`: the tables, and who may do what."""

from typing import Annotated

import typer

from headwater.cli.config import Url
from headwater.cli.session import session
from headwater.postgres.statements import execute_sync
from headwater.queue import prepare_queue
from headwater.queue.operate_statements import grant_enqueuing, grant_working

Grant = Annotated[
    list[str] | None, typer.Option("--grant", metavar="ROLE", help="A role that may enqueue; may be repeated.")
]
GrantWork = Annotated[
    list[str] | None,
    typer.Option("--grant-work", metavar="ROLE", help="A role that may enqueue and work; may be repeated."),
]


def init(url: Url = "", grant: Grant = None, grant_work: GrantWork = None) -> None:
    """Make the tables of the queue in a database, or bring them to the version of this release.

    What is there stays. A role that may enqueue cannot read what is in jobs. One that may work can also look at jobs and
    cancel some; to retry, to purge and to set limits is up to the owner of the tables.

    Examples:

        headwater queue init --url postgresql://owner@db.example.com/shop --grant shop_app --grant-work shop_worker
    """
    enqueuing, working = grant or [], grant_work or []
    with session(url) as connection:
        prepare_queue(connection)
        with connection.transaction():
            for role in (*enqueuing, *working):
                execute_sync(connection, grant_enqueuing(role))
            for role in working:
                execute_sync(connection, grant_working(role))
    typer.echo("the queue is in schema headwater; have its jobs done with `headwater queue work MODULE:WORKER`")
    for role in enqueuing:
        typer.echo(f"role {role} may enqueue")
    for role in working:
        typer.echo(f"role {role} may enqueue, and work")
