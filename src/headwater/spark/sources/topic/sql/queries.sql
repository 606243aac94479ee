-- name: find_ends
-- How far a batch goes in each partition: up to so many bytes of frames, and at least one frame. The size of a frame is known
-- without reading it. The table stands for that of the topic.
select wanted.partition,
       max(sized.last_offset) + 1 as next_offset,
       max(sized.created_at) as created_at
  from unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) as wanted (partition, next_offset)
 cross join lateral (
       select found.last_offset,
              found.created_at,
              sum(found.bytes) over (order by found.last_offset) - found.bytes as bytes_before
         from (select one.last_offset, one.created_at, octet_length(one.frame) as bytes
                 from headwater.topic_log_0 as one
                where one.partition = wanted.partition
                  and one.last_offset >= wanted.next_offset
                order by one.last_offset
                limit %(frames)s) as found
       ) as sized
 where sized.bytes_before < %(bytes)s
 group by wanted.partition
 order by wanted.partition;

-- name: find_cuts
-- Where a range is cut into pieces of about so many bytes: behind the last message of a frame.
select max(sized.last_offset) + 1 as next_offset
  from (select one.last_offset,
               sum(octet_length(one.frame)) over (order by one.last_offset) as bytes
          from headwater.topic_log_0 as one
         where one.partition = %(partition)s
           and one.last_offset >= %(first)s
           and one.last_offset < %(until)s) as sized
 group by (sized.bytes - 1) / %(piece)s
 order by next_offset;

-- name: read_range
-- The frames of a range; the first and the last may have messages outside of it.
select one.partition, one.last_offset, one.count, one.codec, one.created_at, one.frame
  from headwater.topic_log_0 as one
 where one.partition = {partition}
   and one.last_offset >= {first}
   and one.last_offset <= (select min(last.last_offset)
                             from headwater.topic_log_0 as last
                            where last.partition = {partition}
                              and last.last_offset >= {until} - 1)
 order by one.last_offset;

-- name: make_group
insert into headwater.topic_group (topic_id, name, mode)
values (%(topic_id)s, %(name)s, 'partition')
    on conflict (topic_id, name) do nothing;

-- name: hold_group
-- The group, which nobody joins until the transaction ends; whoever was about to looks again.
update headwater.topic_group as known
   set generation = generation + 1
 where known.topic_id = %(topic_id)s
   and known.name = %(name)s
returning known.id,
          known.mode,
          exists (select
                    from headwater.topic_member as member
                   where member.group_id = known.id
                     and member.lease_until > clock_timestamp()) as has_members;

-- name: list_cursors
-- How far a group is.
select cursor.partition, cursor.next_offset, cursor.epoch
  from headwater.topic_group as known
  join headwater.topic_cursor as cursor on cursor.group_id = known.id
 where known.topic_id = %(topic_id)s
   and known.name = %(name)s
 order by cursor.partition;

-- name: take_cursors
-- From now on no one with an earlier epoch moves them. Those that are missing are made.
insert into headwater.topic_cursor as cursor (group_id, partition, next_offset, epoch)
select %(group_id)s, given.partition, given.next_offset, 1
  from unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) as given (partition, next_offset)
    on conflict (group_id, partition) do update
   set epoch = cursor.epoch + 1,
       member = null
returning cursor.partition, cursor.next_offset, cursor.epoch;

-- name: move_cursors
-- All of them, or none if one is somebody else's by now.
with given as (
    select partition, next_offset, epoch
      from unnest(%(partitions)s::integer[], %(offsets)s::bigint[], %(epochs)s::bigint[])
           as given (partition, next_offset, epoch)
), held as materialized (
    select cursor.partition, given.next_offset
      from headwater.topic_cursor as cursor
      join given on given.partition = cursor.partition and given.epoch = cursor.epoch
     where cursor.group_id = %(group_id)s
       for update of cursor
), moved as (
    update headwater.topic_cursor as cursor
       set next_offset = held.next_offset,
           attempts = 0,
           suspect_until = -1,
           committed_at = clock_timestamp()
      from held
     where cursor.group_id = %(group_id)s
       and cursor.partition = held.partition
       and (select count(*) from held) = (select count(*) from given)
)
select (select count(*) from held) = (select count(*) from given);

-- name: is_group_paused
select is_paused from headwater.topic_group where id = %(group_id)s;
