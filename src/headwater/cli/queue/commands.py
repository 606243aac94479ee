"""The commands of `headwater queue`, one line each."""

import typer

from headwater.cli.queue.change import cancel, purge, retry
from headwater.cli.queue.enqueue import enqueue
from headwater.cli.queue.limits import limit, pause, resume
from headwater.cli.queue.setup import init
from headwater.cli.queue.show import show, show_all
from headwater.cli.queue.status import status
from headwater.cli.queue.work import work

queue = typer.Typer(no_args_is_help=True)


@queue.callback()
def default() -> None:
    """Look after jobs in PostgreSQL, which applications enqueue in their transactions and workers do.

    Examples:

        headwater queue init
        headwater queue work shop.jobs:worker
        headwater queue status
    """


queue.command("cancel")(cancel)
queue.command("enqueue")(enqueue)
queue.command("init")(init)
queue.command("limit")(limit)
queue.command("list")(show_all)
queue.command("pause")(pause)
queue.command("purge")(purge)
queue.command("resume")(resume)
queue.command("retry")(retry)
queue.command("show")(show)
queue.command("status")(status)
queue.command("work")(work)
