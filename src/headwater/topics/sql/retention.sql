-- name: hold_topic
-- Until the transaction ends nobody chooses a place in the topic.
select from headwater.topic where id = %(topic_id)s for no key update;

-- name: read_segments
-- The segments of a topic, from the oldest on. A segment is read if all groups have dealt with all that is in it; a group
-- without a cursor has dealt with nothing. The table stands for that of the topic.
with reached as (
    select known.partition,
           min(least(coalesce(place.next_offset, 0), claimed.first_offset)) as next_offset
      from headwater.topic_group as reader
      join headwater.topic_partition as known on known.topic_id = reader.topic_id
      left join headwater.topic_cursor as place on place.group_id = reader.id and place.partition = known.partition
      left join lateral (
           select min(claim.first_offset) as first_offset
             from headwater.topic_claim as claim
            where claim.group_id = reader.id
              and claim.partition = known.partition
           ) as claimed on true
     where reader.topic_id = %(topic_id)s
     group by known.partition
)
select listed.segment,
       listed.bytes,
       listed.segment = topic.segment as is_current,
       extract(epoch from clock_timestamp() - topic.segment_began_at)::float8 as current_seconds,
       max(log.created_at) as newest_at,
       max(log.last_offset) as last_offset,
       coalesce(bool_and(log.last_offset < reached.next_offset or reached.next_offset is null), true) as is_read,
       clock_timestamp() as read_at
  from headwater.topic
 cross join headwater.topic_segments_1(topic.id) as listed
  left join headwater.topic_partition as known on known.topic_id = topic.id
  left join reached on reached.partition = known.partition
  left join lateral (
       select one.last_offset, one.created_at
         from headwater.topic_log_0 as one
        where one.segment = listed.segment
          and one.partition = known.partition
        order by one.last_offset desc
        limit 1
       ) as log on true
 where topic.id = %(topic_id)s
 group by topic.id, listed.segment, listed.bytes
 order by listed.segment;

-- name: rotate
select headwater.topic_rotate_1(%(topic_id)s, %(segment)s);

-- name: drop_segments
select headwater.topic_drop_segments_1(%(topic_id)s, %(up_to)s);

-- name: forget_producers
-- Batches of so long ago are not sent again.
delete from headwater.topic_producer
 where topic_id = %(topic_id)s
   and appended_at < clock_timestamp() - make_interval(secs => %(seconds)s);
