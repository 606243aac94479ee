"""The tables of each pipeline, and its slot, in the state database: what is to be read as a whole, and how far that is.

Whoever wants a table read as a whole says so here, with `request_load` or one of the SQL functions; the pipeline looks.
"""

from headwater.capture.tables.statements import Name, PipelineTable, Progress, Reading, SlotRecord, State
from headwater.capture.tables.store import TableStore, prepare_tables, request_load

__all__ = [
    "Name",
    "PipelineTable",
    "Progress",
    "Reading",
    "SlotRecord",
    "State",
    "TableStore",
    "prepare_tables",
    "request_load",
]
