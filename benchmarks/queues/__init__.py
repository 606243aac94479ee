"""The parts of the benchmark of the queue."""
