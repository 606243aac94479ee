"""The parts of `benchmarks.snapshot`: each measures one thing, on servers of its own, and returns its bars."""
