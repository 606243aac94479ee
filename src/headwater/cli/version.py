"""`headwater version`."""

import platform

import psycopg
import typer
from psycopg import pq

from headwater import __version__
from headwater.cli.config import Json
from headwater.cli.output import print_json


def version(json: Json = False) -> None:
    """Print the version of Headwater, and of what it runs on."""
    facts = {
        "headwater": __version__,
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
        "libpq": _dotted(pq.version()),
        "platform": platform.platform(),
    }
    if json:
        print_json(facts)
    else:
        typer.echo("headwater {headwater} (Python {python}, psycopg {psycopg}, libpq {libpq}, {platform})".format(**facts))


def _dotted(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"
