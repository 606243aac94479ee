"""The SQL of this benchmark alone: statements with their parameters and rows named."""

from typing import Final

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.capture")


def create_objects() -> Statement[None]:
    return SQL["create_objects"].compose()


def write_mixed(changes: int) -> Statement[int]:
    return SQL["write_mixed"].bind(int, changes=changes)


def write_done() -> Statement[int]:
    return SQL["write_done"].bind(int)


def streamed_bytes(slot: str) -> Statement[int]:
    return SQL["streamed_bytes"].bind(int, slot=slot)
