"""A transform of one's own: from DataFrame to DataFrame, with the columns of `changes` going in and coming out."""

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, regexp_replace, when

# A date in a row's JSON; only the year stays.
BIRTHDAY = r'"born":"(\d+)-\d\d-\d\d"'


def mask_birthdays(changes: DataFrame) -> DataFrame:
    """Every birthday becomes the first of January."""
    is_customer = col("table") == "customers"
    return changes.withColumns({side: when(is_customer, _masked(side)).otherwise(col(side)) for side in ("before", "after")})


def _masked(side: str) -> Column:
    return regexp_replace(side, BIRTHDAY, '"born":"$1-01-01"')
