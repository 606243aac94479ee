"""What is said where a database has no tables of the queue."""

from headwater.errors import SchemaError


def no_queue() -> SchemaError:
    return SchemaError("this database has no queue, or that of an earlier release; run `headwater queue init` first")
