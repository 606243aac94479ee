"""Creek's messages from bytes: schemas taken apart, rows as Python values or as PostgreSQL's texts. No socket, no clock."""

from headwater.creek.decode.shape import Schema
from headwater.creek.decode.wal import HEAD_BYTES, Decoder, Source, WalMessage, decode_message

__all__ = ["HEAD_BYTES", "Decoder", "Schema", "Source", "WalMessage", "decode_message"]
