"""The parts of `benchmarks.pipeline`: each measures one thing, on servers of its own, and returns its bars."""
