"""`headwater topics append`: lines of a file or a pipe as messages, by a producer."""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final

import typer

from headwater.cli.config import Url
from headwater.cli.session import session
from headwater.cli.topics.messages import json_message, plain_message
from headwater.errors import SettingsError, TopicError
from headwater.topics import Message, Producer, ProducerSettings, Topic, find_sync, require_topics
from headwater.topics.message import encode_message

# What is read, and appended, at a time: enough for frames of all partitions.
_READ_BYTES: Final = 1 << 20
# A character of JSON is written with up to six.
_LINE_FACTOR: Final = 6

Parse = Callable[[bytes, str | None, Mapping[str, str]], Message]


def append(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", show_default="standard input", help="Where the messages are, one a line.")
    ] = "-",
    key: Annotated[str | None, typer.Option("--key", help="The key of the messages.", show_default="none")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header of the messages; may be repeated.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Lines are objects with payload, and key and headers if any, as `read` writes them."),
    ] = False,
    url: Url = "",
) -> None:
    """Append the lines of a file, or of standard input, to a topic; each is durable when this ends.

    A line is the payload of a message, as it is. With --json it is an object with `payload`, which is any value of JSON, or
    `payload_text` or `payload_base64` for other bytes; --key and --header are for those that have none. A line that cannot
    be a message ends it, by its number: those before it are appended, those behind it are not.

    Examples:

        echo '{"id": 17}' | headwater topics append orders --key 17 --header source=shell
        headwater topics append orders orders.txt
        headwater topics read orders --json | headwater topics append copy --json
    """
    headers = dict(_header(one) for one in header or ())
    with session(url) as connection:
        require_topics(connection)
        topic = find_sync(connection, name)
    parse: Parse = json_message if json else plain_message
    with _opened(file) as stream:
        appended = _append(url, topic, read_chunks(stream, topic, lambda line: parse(line, key, headers)))
    typer.echo(f"appended to {topic.name}: {appended:,}")


def read_chunks(stream: BufferedReader, topic: Topic, parse: Callable[[bytes], Message]) -> Iterator[list[Message]]:
    """What can be read at once, as messages. Of a bad line TopicError is raised when all before it was taken."""
    number, rest = 0, b""
    while True:
        read = stream.read1(_READ_BYTES)
        *lines, rest = (rest + read).split(b"\n")
        if len(rest) > _LINE_FACTOR * topic.max_bytes + _READ_BYTES:
            raise TopicError(f"line {number + len(lines) + 1:,} is longer than any message of the topic; write one a line")
        if not read and rest:
            lines, rest = [rest], b""
        messages: list[Message] = []
        for line in lines:
            number += 1
            try:
                messages.append(_checked(parse(line.removesuffix(b"\r")), topic))
            except TopicError as exc:
                if messages:
                    yield messages
                raise TopicError(f"line {number:,}: {exc}; the lines before it are appended") from exc
        if messages:
            yield messages
        if not read:
            return


def _append(url: str, topic: Topic, chunks: Iterator[list[Message]]) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("appended {task.completed:,}"), BarColumn(), TimeElapsedColumn())
    shows = sys.stderr.isatty() and not sys.stdin.isatty()
    appended, producer = 0, Producer(url, topic.name, ProducerSettings(maintain_every=None))
    # The loop runs while something is sent: reading blocks, and Ctrl-C ends it there.
    with (
        Progress(*columns, console=Console(stderr=True), transient=True, disable=not shows) as progress,
        asyncio.Runner() as runner,
    ):
        task = progress.add_task("", total=None)
        runner.run(producer.__aenter__())
        try:
            for chunk in chunks:
                appended += len(runner.run(producer.send_many(chunk)))
                progress.update(task, completed=appended)
        finally:
            runner.run(producer.__aexit__(None, None, None))
    return appended


def _checked(message: Message, topic: Topic) -> Message:
    encode_message(message, topic.max_bytes)
    return message


def _opened(file: str) -> AbstractContextManager[BufferedReader]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)  # type: ignore[arg-type]  # typeshed has it as BinaryIO
    try:
        return Path(file).open("rb")
    except OSError as exc:
        raise SettingsError(
            f"cannot read {file}: {exc.strerror}; name a file that is there, or - for standard input"
        ) from exc


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise SettingsError(f"--header must be NAME=VALUE, not {text!r}")
    return name, value
