"""What a pipeline says of itself, in `headwater.pipeline` of the state database: written by its run, read by others."""

from headwater.spark.state.limits import Limits, Use, uses
from headwater.spark.state.progress import Progress, as_json, notes
from headwater.spark.state.report import Phase, Report, SavedReport, SinkReport, TableReport
from headwater.spark.state.store import (
    Rights,
    ServerPosition,
    TableLoad,
    claim_slot,
    count_open_letters,
    fetch_idle_seconds,
    fetch_report,
    fetch_rights,
    fetch_server_position,
    is_paused,
    list_loads,
    pause,
    resume,
    save_report,
    set_asking_session,
)

__all__ = [
    "Limits",
    "Phase",
    "Progress",
    "Report",
    "Rights",
    "SavedReport",
    "ServerPosition",
    "SinkReport",
    "TableLoad",
    "TableReport",
    "Use",
    "as_json",
    "claim_slot",
    "count_open_letters",
    "fetch_idle_seconds",
    "fetch_report",
    "fetch_rights",
    "fetch_server_position",
    "is_paused",
    "list_loads",
    "notes",
    "pause",
    "resume",
    "save_report",
    "set_asking_session",
    "uses",
]
