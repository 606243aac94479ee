"""`headwater run`: runs the pipeline of a file until it is told to stop, or until what is there is delivered."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.config import File, environment
from headwater.cli.loading import loading_shown
from headwater.cli.pipeline import load_pipeline
from headwater.cli.signals import stop_on_sigterm
from headwater.embedded import resolve_java, state_directory
from headwater.http import bind

if TYPE_CHECKING:
    from threading import Event

    from headwater.spark.monitor import Watch
    from headwater.spark.reporter import Reporter
    from headwater.spark.settings import PipelineSettings

_log = logging.getLogger(__name__)

Once = Annotated[bool, typer.Option("--once", help="Deliver what has committed by now, confirm it to the slot, and exit.")]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        show_default="`listen` of the file",
        help="Where to answer monitors: /metrics, /health, /ready and /status.",
    ),
]


def run(file: File = None, once: Once = False, listen: Listen = None) -> None:
    """Run a pipeline until SIGTERM: it finishes the batch that it is at, and exits with 0; a second SIGTERM ends it at once.

    What a pipeline needs is made when it is missing: the publication, then the slot, Headwater's own tables, and tables of a
    PostgreSQL sink.

    A second run of the same pipeline stands by, and takes over when the first one ends, also when that was killed. With
    `--once` that is an error.

    Examples:

        headwater run
        headwater run --listen 127.0.0.1:9464
        headwater run --file pipelines/shop.toml --once
    """
    settings = load_pipeline(file)
    if listen is not None:
        settings = replace(settings, listen=listen)
    with stop_on_sigterm() as stopping:
        try:
            run_pipeline(settings, stopping, once=once)
        except KeyboardInterrupt:
            stopping.set()
            raise


def run_pipeline(settings: "PipelineSettings", stopping: "Event", *, once: bool) -> None:
    """Run it on a session of its own, which ends with it."""
    from headwater.spark.feed import build_feed
    from headwater.spark.pipeline import Pipeline
    from headwater.spark.reporter import Reporter
    from headwater.spark.session import build_session, end_session
    from headwater.spark.sinks.build import build_sinks
    from headwater.spark.transform import check_transform

    with ExitStack() as stack:
        reporter = Reporter(settings)
        watch = _watch(settings, reporter, stack)
        sinks = build_sinks(settings)
        java = resolve_java(environment(), state_directory())
        spark = build_session(settings.name, master=settings.master, settings=settings.spark, java_home=java)
        stack.callback(end_session, spark)
        if settings.transform is not None:
            check_transform(spark, settings.transform, build_feed(settings).shape)
        names = ", ".join(sink.name for sink in sinks)
        _log.info("pipeline %s: slot %s to %s", settings.name, settings.source.slot, names, extra=reporter.facts)
        stack.enter_context(loading_shown(settings))
        beside: Callable[[], AbstractContextManager[object]] = nullcontext
        if settings.has_nats:
            # They need nats-py, which is an extra.
            from headwater.cli.creek.services import CreekServices

            services = CreekServices(settings, sinks)
            stack.enter_context(services.measured(reporter, watch))
            beside = partial(services.answering, spark)
        Pipeline(spark, settings, sinks, stopping, reporter, beside).run(once=once)


def _watch(settings: "PipelineSettings", reporter: "Reporter", stack: ExitStack) -> "Watch":
    """Look after the run until its end, and tell monitors of it if they are to be told."""
    from headwater.spark.monitor import Listener, Watch

    place = bind(settings.listen) if settings.listen is not None else None
    watch = stack.enter_context(Watch(settings, reporter))
    if place is not None:
        stack.enter_context(Listener(place, settings.name, reporter, watch))
        host, port = place.getsockname()[:2]
        _log.info("pipeline %s: listening on %s, port %s", settings.name, host, port, extra={**reporter.facts, "port": port})
    return watch
