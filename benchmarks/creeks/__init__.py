"""The parts of `benchmarks.creek`: each measures one thing, on servers of its own, and returns its bars."""
