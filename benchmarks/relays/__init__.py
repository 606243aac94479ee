"""The parts of the benchmark of the relay that runs inside of an application."""
