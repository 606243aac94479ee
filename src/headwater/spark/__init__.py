"""Pipelines on Spark Structured Streaming: sources, transforms and sinks, which also work in a session of the user's own."""

from headwater.spark.session import build_session
from headwater.spark.sources import register

__all__ = ["build_session", "register"]
