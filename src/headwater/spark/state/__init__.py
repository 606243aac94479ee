"""What a pipeline says of itself, in `headwater.pipeline` of the state database: written by its run, read by others."""

from headwater.spark.state.report import Phase, Report, SavedReport, SinkReport, TableReport
from headwater.spark.state.store import (
    Rights,
    ServerPosition,
    fetch_report,
    fetch_rights,
    fetch_server_position,
    save_report,
)

__all__ = [
    "Phase",
    "Report",
    "Rights",
    "SavedReport",
    "ServerPosition",
    "SinkReport",
    "TableReport",
    "fetch_report",
    "fetch_rights",
    "fetch_server_position",
    "save_report",
]
