"""What the recordings hold, assembled and decoded, for the tests of decoders."""

import json
import tempfile
from pathlib import Path

from headwater.capture.assemble import Assembler
from headwater.model import Change, LogicalMessage
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json
from tests.data.record import load

TYPES = Types.builtin()


def batches(messages: list[bytes], batch_bytes: int = 1 << 20) -> list[Batch]:
    """The messages of a recording as capture would hand them on."""
    assembler = Assembler(batch_bytes, Path(tempfile.gettempdir()))
    found = [*assembler.feed(map(memoryview, messages)), *assembler.flush()]
    assembler.close()
    return found


def changes(scenario: str, version: int, batch_bytes: int = 1 << 20) -> list[Change | LogicalMessage]:
    found = batches(load(scenario, version), batch_bytes)
    return [change for batch in found for change in decode_rows(batch, TYPES, to_json)]


def line(change: Change | LogicalMessage) -> str:
    """A change without what differs from run to run, as one line of JSON."""
    if isinstance(change, LogicalMessage):
        parts: dict[str, object] = {"message": change.prefix, "content": change.content.hex(), "ordinal": None}
    else:
        parts = {"op": change.op, "table": f"{change.schema}.{change.table}", "ordinal": change.position.ordinal}
        parts |= {name: getattr(change, name) and _plain(getattr(change, name)) for name in ("key", "before", "after")}
        parts["unchanged"] = change.unchanged
    return json.dumps(parts, ensure_ascii=False)


def _plain(row: dict[str, object]) -> dict[str, object]:
    return {name: _short(value) for name, value in row.items() if value is None or isinstance(value, str)}


def _short(fragment: object) -> object:
    value = None if fragment is None else json.loads(str(fragment))
    return f"{value[:8]}... {len(value)}" if isinstance(value, str) and len(value) > 40 else value
