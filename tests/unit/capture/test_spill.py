"""What is put aside on disk comes back whole and in order."""

import os
import tempfile
from pathlib import Path

import pytest

from headwater.capture.spill import Spill
from headwater.errors import SourceError


def _messages(count: int) -> list[bytes]:
    return [b"I" + str(number).encode() * (number % 7 + 1) for number in range(count)]


def _read(spill: Spill) -> list[bytes]:
    blocks = list(spill.blocks())
    assert [is_last for _, is_last in blocks] == [False] * (len(blocks) - 1) + [True]
    return [
        bytes(block.data[start:end])
        for block, _ in blocks
        for start, end in zip(block.bounds[:-1], block.bounds[1:], strict=True)
    ]


@pytest.mark.parametrize("block_bytes", [1, 50, 10_000])
def test_messages_come_back_in_order_from_disk_and_memory(tmp_path, block_bytes):
    spill = Spill(7, tmp_path, block_bytes)
    for message in _messages(100):
        spill.add(memoryview(message))
    assert _read(spill) == _messages(100)
    spill.close()


def test_a_transaction_without_messages_gives_one_empty_block(tmp_path):
    assert _read(Spill(7, tmp_path, 100)) == []


def test_a_file_system_that_takes_a_write_in_parts_gets_all_of_them(tmp_path, monkeypatch):
    """An unbuffered write may write less than it was given."""

    class Sparing:
        def __init__(self, file):
            self._file = file

        def write(self, data):
            return self._file.write(data[:3])

        def __getattr__(self, name):
            return getattr(self._file, name)

    opened = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: Sparing(opened(**options)))
    spill = Spill(7, tmp_path, 50)
    for message in _messages(40):
        spill.add(memoryview(message))
    assert _read(spill) == _messages(40)
    spill.close()


def test_a_directory_that_is_gone_is_named_with_the_transaction(tmp_path):
    spill = Spill(77, tmp_path / "gone", 1)
    with pytest.raises(SourceError, match=r"transaction 77.*gone.*name another directory"):
        spill.add(memoryview(b"I"))


def test_a_lack_of_file_descriptors_is_told_apart_from_a_lack_of_room(tmp_path, monkeypatch):
    def refuse(**_options):
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(SourceError, match="limit of open files"):
        Spill(7, Path(tmp_path), 1).add(memoryview(b"I"))
