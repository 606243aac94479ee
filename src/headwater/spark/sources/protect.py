"""Values that must not leave as they are: columns masked with a fixed text, or replaced by their salted hash. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Protection:
    """Which columns, as `schema.table.column`, are masked with what, and which are hashed."""

    mask: Mapping[str, str] = field(default_factory=dict)
    hash: frozenset[str] = frozenset()
    salt: str = field(default="", repr=False)

    def covers(self, column: str) -> bool:
        return column in self.mask or column in self.hash

    def apply(self, texts: pa.StringArray, column: str) -> pa.StringArray:
        """The column's texts as they may leave; NULL stays NULL."""
        if column in self.mask:
            return pc.if_else(pc.is_valid(texts), self.mask[column], pa.scalar(None, pa.string()))
        if column in self.hash:
            return _hashed(texts, self.salt)
        return texts


def _hashed(texts: pa.StringArray, salt: str) -> pa.StringArray:
    encoded = texts.dictionary_encode()
    digests = [hashlib.sha256(f"{salt}{text}".encode()).hexdigest() for text in encoded.dictionary.to_pylist()]
    return pa.array(digests, pa.string()).take(encoded.indices)
