"""The parts of `benchmarks.outbox_wal`: each measures one thing, on servers of its own, and returns its bars."""
