"""The parts of the benchmark of topics."""
