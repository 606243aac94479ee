"""One folder, one question. Run one with `make bench NAME=...`; each ends with the line of `benchmarks.report`.

Modules beside the folders are shared by several of them.
"""
