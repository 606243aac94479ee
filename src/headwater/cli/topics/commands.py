"""The commands of `headwater topics`, one line each."""

import typer

from headwater.cli.topics.append import append
from headwater.cli.topics.dead import dead
from headwater.cli.topics.describe import describe
from headwater.cli.topics.groups import drop_group, groups, pause, resume
from headwater.cli.topics.keep import maintain, trim
from headwater.cli.topics.read import read
from headwater.cli.topics.seek import seek
from headwater.cli.topics.setup import add_partitions, create, init, show_all

topics = typer.Typer(no_args_is_help=True)


@topics.callback()
def default() -> None:
    """Look after topics: logs in PostgreSQL with gapless offsets, which groups read at their own pace.

    Examples:

        headwater topics init
        headwater topics create orders --partitions 4 --retention '7 days'
        headwater topics read orders --follow
    """


topics.command("add-partitions")(add_partitions)
topics.command("append")(append)
topics.command("create")(create)
topics.command("dead")(dead)
topics.command("describe")(describe)
topics.command("drop-group")(drop_group)
topics.command("groups")(groups)
topics.command("init")(init)
topics.command("list")(show_all)
topics.command("maintain")(maintain)
topics.command("pause")(pause)
topics.command("read")(read)
topics.command("resume")(resume)
topics.command("seek")(seek)
topics.command("trim")(trim)
