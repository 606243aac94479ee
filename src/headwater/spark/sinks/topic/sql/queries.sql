-- name: lock_partitions
-- All partitions that a transaction appends to, in the order that all take them in, before the first of several appends.
with locked as materialized (
    select pg_advisory_xact_lock(headwater.topic_lock_key(%(topic_id)s, wanted.partition))
      from unnest(%(partitions)s::integer[]) as wanted (partition)
     order by wanted.partition
)
select count(*) from locked;

-- name: forget_other_pieces
-- What was appended by attempts that are over: none of it comes again.
delete from headwater.sink_piece
 where pipeline = %(pipeline)s
   and sink = %(sink)s
   and attempt <> %(attempt)s;
