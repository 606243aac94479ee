"""One file, one question. Run one with `make bench NAME=...`; each ends with the line of `benchmarks.report`."""
