"""Columns of the server's text to the fields of Avro data, whole columns at a time.

`encode_column` gives a column's pieces, which `join` puts together with those of other columns, row by row.
"""

from headwater.creek.avro.binary import Mask, Piece, join, long, longs, packed, text_of
from headwater.creek.avro.column import Column, encode_column

__all__ = ["Column", "Mask", "Piece", "encode_column", "join", "long", "longs", "packed", "text_of"]
