"""`make soak`: stories with random faults, round after round, each of which its seed replays."""
