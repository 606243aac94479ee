-- name: create_topic
-- The topic with its partitions and its log, in the transaction of the caller.
select headwater.topic_create_1(
           %(name)s::text, %(partitions)s::integer, %(compression)s::text,
           make_interval(secs => %(retention_seconds)s::float8), %(retention_bytes)s::bigint, %(max_bytes)s::integer
       );

-- name: add_partitions
-- How many it has then.
select headwater.topic_add_partitions_1(%(topic_id)s, %(partitions)s);

-- name: find_topics
-- All topics, or that of a name.
select id, name, partitions, compression, extract(epoch from retention)::float8 as retention_seconds, retention_bytes,
       max_bytes, created_at
  from headwater.topic
 where %(name)s::text is null
    or name = %(name)s::text
 order by name;

-- name: stage_frames
-- In the transaction of the caller; offsets are given after its commit. The bell is rung once for each transaction, however
-- often it appends.
with staged as (
    insert into headwater.topic_staged (topic_id, partitions, counts, codecs, frames)
    values (%(topic_id)s, %(partitions)b::integer[], %(counts)b::integer[], %(codecs)b::smallint[], %(frames)b::bytea[])
)
select case when %(rings)s then pg_notify('headwater_topic_' || %(topic_id)s, '') end is not null;

-- name: hold_partitions
-- Before appends to them in this transaction; what was staged and committed before gets its offsets. Whether that was all of it.
select headwater.topic_hold_1(%(topic_id)s, %(partitions)s::integer[]);

-- name: append_held
-- Append to partitions that are held, in a transaction that ends soon: others wait for it. The offset of the first message of
-- each frame. The function stands for that of the topic.
select headwater.topic_log_0_append_1(
           %(partitions)b::integer[], %(counts)b::integer[], %(codecs)b::smallint[], %(frames)b::bytea[]
       );

-- name: has_staged
-- Whether something that was committed has no offsets yet.
select exists (select from headwater.topic_commit where topic_id = %(topic_id)s);

-- name: number_staged
select headwater.topic_number_1(%(topic_id)s);

-- name: ring
select pg_notify('headwater_topic_' || %(topic_id)s, '') is not null;

-- name: read_bounds
select partition, first_offset, next_offset from headwater.topic_bounds_1(%(topic_id)s);

-- name: read_frames
-- The frames from an offset of each partition on, in order, at most so many of each. The table stands for that of the topic.
select log.partition, log.last_offset, log.count, log.codec, log.created_at, log.frame
  from unnest(%(partitions)b::integer[], %(offsets)b::bigint[]) as wanted (partition, next_offset)
 cross join lateral (
       select one.partition, one.last_offset, one.count, one.codec, one.created_at, one.frame
         from headwater.topic_log_0 as one
        where one.partition = wanted.partition
          and one.last_offset >= wanted.next_offset
        order by one.last_offset
        limit %(limit)s
       ) as log
 order by log.partition, log.last_offset;
