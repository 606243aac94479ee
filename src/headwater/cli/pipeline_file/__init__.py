"""The pipeline file, `headwater.toml`: read, filled from the environment, and checked, before anything starts.

`load.load` reads it; `brokers` and `values` are for other files, too, and load nothing of Spark.
"""

__all__: list[str] = []
