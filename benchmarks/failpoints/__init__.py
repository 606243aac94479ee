"""What failpoints cost when none is armed: the time of a hit, and its share of the busiest loop that has some."""
