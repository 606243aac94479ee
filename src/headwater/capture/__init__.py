"""Changes as they happen: WAL to transactions in commit order, with positions, confirmation and recovery."""

from headwater.capture.catalog_types import CatalogTypes
from headwater.capture.heartbeat import emit_mark, is_mark
from headwater.capture.reader import Capture
from headwater.capture.settings import CaptureSettings

__all__ = ["Capture", "CaptureSettings", "CatalogTypes", "emit_mark", "is_mark"]
