"""The pipeline file, `headwater.toml`: read, filled from the environment, and checked, before anything starts."""

from headwater.cli.pipeline_file.load import load

__all__ = ["load"]
