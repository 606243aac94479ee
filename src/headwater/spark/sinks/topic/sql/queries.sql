-- name: forget_other_pieces
-- What was appended by attempts that are over: none of it comes again.
delete from headwater.sink_piece
 where pipeline = %(pipeline)s
   and sink = %(sink)s
   and attempt <> %(attempt)s;
