"""Requests of Creek's clients, answered by a running pipeline: schemas, and snapshots that Spark reads."""

from headwater.spark.creek.counts import SnapshotCounts
from headwater.spark.creek.service import RequestService

__all__ = ["RequestService", "SnapshotCounts"]
