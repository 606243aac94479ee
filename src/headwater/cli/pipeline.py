"""The pipeline that a command is about. Spark is an extra, and slow to load: commands ask for it here, when they need it."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.cli.config import environment
from headwater.errors import SettingsError

if TYPE_CHECKING:
    from headwater.spark.settings import PipelineSettings

DEFAULT_FILE = Path("headwater.toml")


def load_pipeline(file: Path | None) -> "PipelineSettings":
    """The settings in a pipeline file, by default the one in the current directory; raises SettingsError."""
    require_spark()
    from headwater.cli.pipeline_file.load import load

    settings = load(file or DEFAULT_FILE, environment())
    if settings.has_nats:
        require_nats()
    return settings


def has_spark() -> bool:
    return find_spec("pyspark") is not None


def require_spark() -> None:
    if not has_spark():
        raise SettingsError("pipelines run on Spark, which is not installed; run `pip install 'headwater[spark]'`")


def require_nats() -> None:
    if find_spec("nats") is None:
        raise SettingsError("nats-py is needed for NATS, and is not installed; run `pip install 'headwater[nats]'`")
