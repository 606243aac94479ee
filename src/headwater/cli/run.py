"""`headwater run`: runs the pipeline of a file until it is told to stop, or until what is there is delivered."""

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.config import File, environment
from headwater.cli.pipeline import load_pipeline
from headwater.cli.signals import stop_on_sigterm
from headwater.embedded import resolve_java, state_directory

if TYPE_CHECKING:
    from threading import Event

    from pyspark.sql import SparkSession

    from headwater.spark.settings import PipelineSettings

_log = logging.getLogger(__name__)

Once = Annotated[bool, typer.Option("--once", help="Deliver what has committed by now, confirm it to the slot, and exit.")]


def run(file: File = None, once: Once = False) -> None:
    """Run a pipeline until SIGTERM: it finishes the batch that it is at, and exits with 0; a second SIGTERM ends it at once.

    What a pipeline needs is made when it is missing: the publication, then the slot, Headwater's own tables, and tables of a
    PostgreSQL sink. A pipeline begins with the changes after its slot was made.

    Examples:

        headwater run
        headwater run --file pipelines/shop.toml --once
    """
    settings = load_pipeline(file)
    with stop_on_sigterm() as stopping:
        try:
            run_pipeline(settings, stopping, once=once)
        except KeyboardInterrupt:
            stopping.set()
            raise


def run_pipeline(settings: "PipelineSettings", stopping: "Event", *, once: bool) -> None:
    """Run it on a session of its own, which ends with it."""
    from headwater.spark.pipeline import Pipeline
    from headwater.spark.session import build_session
    from headwater.spark.sinks.build import build_sinks
    from headwater.spark.transform import check_transform

    sinks = build_sinks(settings)
    java = resolve_java(environment(), state_directory())
    spark = build_session(settings.name, master=settings.master, settings=settings.spark, java_home=java)
    try:
        if settings.transform is not None:
            check_transform(spark, settings.transform)
        names = ", ".join(sink.name for sink in sinks)
        _log.info(
            "pipeline %s: slot %s to %s", settings.name, settings.source.slot, names, extra={"pipeline": settings.name}
        )
        Pipeline(spark, settings, sinks, stopping).run(once=once)
        _log.info("pipeline %s: stopped", settings.name, extra={"pipeline": settings.name})
    finally:
        _end(spark)


def _end(spark: "SparkSession") -> None:
    """End the session; Java may be gone already, by the same signal that stopped us."""
    from py4j.protocol import Py4JError

    try:
        spark.stop()
    except (Py4JError, OSError) as exc:
        _log.debug("Java has ended before us", exc_info=exc)
