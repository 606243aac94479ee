-- name: append_batch
-- Append what a producer gathered, in a transaction of its own; no offsets if more is staged than that numbers by the way. How
-- many partitions the topic has by now comes with it, since others may have added some. The function stands for that of the topic.
select headwater.topic_log_0_produce_1(
           %(partitions)b::integer[], %(counts)b::integer[], %(codecs)b::smallint[], %(frames)b::bytea[],
           %(producer)s::uuid, %(sequence)s::bigint
       ) as first_offsets,
       (select topic.partitions from headwater.topic where topic.id = %(topic_id)s) as partitions;

-- name: ring_aside
-- Wake those who wait for partitions of a topic, after a commit. A notification is nothing that lasts, so its commit waits for no disk.
select pg_catalog.set_config('synchronous_commit', 'off', true) is not null
   and pg_catalog.pg_notify('headwater_topic_' || %(topic_id)s, %(partitions)s) is not null;
