-- name: find_groups
-- Groups of all topics or of one, or that of a name.
select topic.name as topic, reader.id, reader.name, reader.mode, reader.is_paused, reader.generation, reader.created_at,
       (select count(*)
          from headwater.topic_member as member
         where member.group_id = reader.id
           and member.lease_until > clock_timestamp()) as members
  from headwater.topic_group as reader
  join headwater.topic on topic.id = reader.topic_id
 where (%(topic)s::text is null or topic.name = %(topic)s::text)
   and (%(name)s::text is null or reader.name = %(name)s::text)
 order by topic.name, reader.name;

-- name: resolve_position
-- The offset of each partition that is meant by a place in the log, and what is there.
select bounds.partition, bounds.first_offset, bounds.next_offset,
       case %(kind)s
           when 'earliest' then bounds.first_offset
           when 'latest' then bounds.next_offset
           when 'time' then headwater.topic_offset_at_1(
               %(topic_id)s, bounds.partition, bounds.first_offset, bounds.next_offset, %(at)s::timestamptz
           )
           else %(offset)s::bigint
       end as wanted
  from headwater.topic_bounds_1(%(topic_id)s) as bounds
 where %(partition)s::integer is null
    or bounds.partition = %(partition)s::integer
 order by bounds.partition;

-- name: keep_topic
-- Until the transaction ends, so that what was resolved is still there, in all partitions, when a cursor stands on it.
select headwater.topic_keep_1(%(topic_id)s) is null;

-- name: make_group
-- The group with a cursor for each partition, unless it is there.
with made as (
    insert into headwater.topic_group (topic_id, name, mode)
    values (%(topic_id)s, %(name)s, %(mode)s)
    on conflict do nothing
    returning id
)
insert into headwater.topic_cursor (group_id, partition, next_offset)
select made.id, given.partition, given.next_offset
  from made
 cross join unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) as given (partition, next_offset);

-- name: drop_group
delete from headwater.topic_group where id = %(group_id)s;

-- name: pause_group
update headwater.topic_group
   set is_paused = %(is_paused)s, generation = generation + 1
 where id = %(group_id)s;

-- name: seek
-- Who reads there has to begin anew: with the epoch their commits are refused. The group comes first, here and wherever else it
-- is changed, so that no two wait for each other.
with bumped as (
    update headwater.topic_group
       set generation = generation + 1
     where id = %(group_id)s
    returning id
)
update headwater.topic_cursor as cursor
   set next_offset = given.next_offset, epoch = cursor.epoch + 1, attempts = 0, suspect_until = -1,
       committed_at = clock_timestamp()
  from bumped
 cross join unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) as given (partition, next_offset)
 where cursor.group_id = bumped.id
   and cursor.partition = given.partition;

-- name: forget_claims
-- After `seek`, in a statement of its own: it sees the claim for which that has waited.
delete from headwater.topic_claim
 where group_id = %(group_id)s
   and partition = any(%(partitions)s::integer[]);

-- name: read_lag
select topic, group_name, mode, is_paused, partition, next_offset, tip, claimed, lag, oldest_age, member, epoch, committed_at
  from headwater.topic_lag
 where (%(topic)s::text is null or topic = %(topic)s::text)
   and (%(name)s::text is null or group_name = %(name)s::text)
 order by topic, group_name, partition;

-- name: join_group
-- New partitions of the topic get their cursors, from their beginning.
with bumped as (
    update headwater.topic_group
       set generation = generation + 1
     where id = %(group_id)s
), missing as (
    insert into headwater.topic_cursor (group_id, partition, next_offset)
    select %(group_id)s, known.partition, known.first_offset
      from headwater.topic_partition as known
     where known.topic_id = %(topic_id)s
    on conflict do nothing
)
insert into headwater.topic_member (group_id, member, label, lease_until)
values (%(group_id)s, %(member)s, %(label)s, clock_timestamp() + make_interval(secs => %(lease_seconds)s))
on conflict (group_id, member) do update set lease_until = excluded.lease_until;

-- name: renew
-- Not waited for the disk: what a crash of the server takes away is a part of a lease. When the next lease of another ends is
-- told by the way.
with renewed as (
    update headwater.topic_member
       set lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
     where group_id = %(group_id)s
       and member = %(member)s
       and set_config('synchronous_commit', 'off', true) is not null
    returning member
)
select exists (select from renewed) as is_member,
       (select extract(epoch from min(other.lease_until) - clock_timestamp())::float8
          from headwater.topic_member as other
         where other.group_id = %(group_id)s
           and other.member <> %(member)s) as others_seconds;

-- name: see_others
select exists (
           select
             from headwater.topic_member
            where group_id = %(group_id)s
              and member = %(member)s
       ) as is_member,
       (select extract(epoch from min(other.lease_until) - clock_timestamp())::float8
          from headwater.topic_member as other
         where other.group_id = %(group_id)s
           and other.member <> %(member)s) as others_seconds;

-- name: expire_members
with bumped as (
    update headwater.topic_group
       set generation = generation + 1
     where id = %(group_id)s
       and exists (
           select
             from headwater.topic_member as late
            where late.group_id = %(group_id)s
              and late.lease_until <= clock_timestamp()
       )
    returning id
)
delete from headwater.topic_member as member
 using bumped
 where member.group_id = bumped.id
   and member.lease_until <= clock_timestamp();

-- name: read_group
select generation,
       array(
           select member
             from headwater.topic_member
            where group_id = %(group_id)s
              and lease_until > clock_timestamp()
            order by member
       ) as members
  from headwater.topic_group
 where id = %(group_id)s;

-- name: read_cursors
select cursor.partition, cursor.next_offset, cursor.epoch, cursor.member, cursor.attempts, cursor.suspect_until,
       known.first_offset
  from headwater.topic_cursor as cursor
  join headwater.topic_partition as known on known.topic_id = %(topic_id)s and known.partition = cursor.partition
 where cursor.group_id = %(group_id)s
 order by cursor.partition;

-- name: assign_partitions
-- Only if nothing has changed since it was decided. What a member had that is gone may have been given out, and was not
-- committed: that is an attempt; what goes out one by one counts its own.
with gate as (
    update headwater.topic_group
       set generation = generation + 1
     where id = %(group_id)s
       and generation = %(generation)s
    returning id
)
update headwater.topic_cursor as cursor
   set member = given.member, epoch = cursor.epoch + 1,
       attempts = cursor.attempts
                + (coalesce(cursor.member <> %(member)s, false) and cursor.next_offset > cursor.suspect_until)::integer
  from gate
 cross join unnest(%(partitions)s::integer[], %(members)s::uuid[]) as given (partition, member)
 where cursor.group_id = gate.id
   and cursor.partition = given.partition;

-- name: leave_group
-- What was given out of partitions and not committed was an attempt.
with bumped as (
    update headwater.topic_group
       set generation = generation + 1
     where id = %(group_id)s
    returning id
), released as (
    update headwater.topic_cursor as cursor
       set member = null,
           attempts = cursor.attempts
                    + (cursor.partition = any(%(given)s::integer[]) and cursor.next_offset > cursor.suspect_until)::integer
      from bumped
     where cursor.group_id = bumped.id
       and cursor.member = %(member)s
)
delete from headwater.topic_member as member
 using bumped
 where member.group_id = bumped.id
   and member.member = %(member)s;

-- name: poll
-- How the group is, and for each who asks the frames from an offset of a partition on: at most so many messages and bytes, up to
-- the end of the frame in which that is reached. That frame is found first, so that the range has two ends: whatever the planner
-- makes of it, it is short. The arrays are those of a select, so that the planner cannot know how long they are: one plan
-- serves all polls then, and planning would cost more than reading. The table stands for that of the topic. Writes nothing,
-- unless there is something in `settled`: that was given out before, and is committed by the way, once.
select (select headwater.topic_settle_1(
                   %(group_id)s, %(settled)s::integer[], %(settled_epochs)s::bigint[], %(settled_offsets)s::bigint[], null,
                   %(waits)s, %(waits_for_others)s
               ) is null
         where %(settled)s::integer[] is not null) as is_settled,
       reader.generation, reader.is_paused,
       exists (select from headwater.topic_commit as waiting where waiting.topic_id = %(topic_id)s) as has_staged,
       log.ask, log.partition, log.last_offset, log.count, log.codec, log.created_at, log.frame
  from headwater.topic_group as reader
  left join lateral (
       select wanted.ask, sized.partition, sized.last_offset, sized.count, sized.codec, sized.created_at, sized.frame
         from unnest(
                  (select %(asks)s::integer[]), (select %(partitions)s::integer[]), (select %(offsets)s::bigint[]),
                  (select %(mosts)s::integer[]), (select %(most_bytes)s::bigint[])
              ) as wanted (ask, partition, next_offset, most, most_bytes)
        cross join lateral (
              select frames.partition, frames.last_offset, frames.count, frames.codec, frames.created_at, frames.frame,
                     sum(octet_length(frames.frame)) over (order by frames.last_offset) - octet_length(frames.frame)
                         as bytes_before
                from headwater.topic_log_0 as frames
               where frames.partition = wanted.partition
                 and frames.last_offset >= wanted.next_offset
                 and frames.last_offset <= coalesce(
                         (select edge.last_offset
                            from headwater.topic_log_0 as edge
                           where edge.partition = wanted.partition
                             and edge.last_offset >= wanted.next_offset + wanted.most - 1
                           order by edge.last_offset
                           limit 1),
                         9223372036854775807
                     )
        ) as sized
        where sized.bytes_before < wanted.most_bytes
       ) as log on not reader.is_paused
 where reader.id = %(group_id)s
 order by log.ask, log.partition, log.last_offset;

-- name: look
-- How a shared group is, and whether there is something to claim. Writes nothing.
select reader.generation, reader.is_paused,
       exists (select from headwater.topic_commit as waiting where waiting.topic_id = %(topic_id)s) as has_staged,
       exists (
           select
             from headwater.topic_free_claims_1(
                      %(group_id)s, %(member)s, %(partitions)s::integer[], %(firsts)s::bigint[]
                  )
       ) as has_free,
       exists (
           select
             from headwater.topic_cursor as cursor
            where cursor.group_id = %(group_id)s
              and exists (
                  select
                    from headwater.topic_log_0 as log
                   where log.partition = cursor.partition
                     and log.last_offset >= cursor.next_offset
                  )
       ) as has_new
  from headwater.topic_group as reader
 where reader.id = %(group_id)s;

-- name: claim
select partition, first_offset, last_offset, epoch, attempts
  from headwater.topic_claim_1(
           %(group_id)s, %(topic_id)s, %(member)s, %(most)s, %(most_bytes)s, %(max_attempts)s, %(begin_at)s,
           %(partitions)s::integer[], %(firsts)s::bigint[]
       );

-- name: read_range
-- The frames that hold what is between two offsets of a partition. The table stands for that of the topic.
select log.partition, log.last_offset, log.count, log.codec, log.created_at, log.frame
  from headwater.topic_log_0 as log
 where log.partition = %(partition)s
   and log.last_offset >= %(first_offset)s
   and log.last_offset <= (
       select edge.last_offset
         from headwater.topic_log_0 as edge
        where edge.partition = %(partition)s
          and edge.last_offset >= %(last_offset)s
        order by edge.last_offset
        limit 1
       )
 order by log.last_offset;

-- name: settle
select headwater.topic_settle_1(
           %(group_id)s, %(partitions)s::integer[], %(epochs)s::bigint[], %(offsets)s::bigint[], %(firsts)s::bigint[], true,
           true
       ) is null;

-- name: settle_claims
select headwater.topic_settle_claims_1(
           %(group_id)s, %(partitions)s::integer[], %(firsts)s::bigint[], %(epochs)s::bigint[], %(is_again)s, %(waits)s
       ) is null;

-- name: count_failure
-- What was given out has failed, and is given out again.
update headwater.topic_cursor as cursor
   set attempts = cursor.attempts + (cursor.next_offset > cursor.suspect_until)::integer
  from unnest(%(partitions)s::integer[], %(epochs)s::bigint[]) as given (partition, epoch)
 where cursor.group_id = %(group_id)s
   and cursor.partition = given.partition
   and cursor.epoch = given.epoch;

-- name: free_claims
-- What was given out has failed, and is for whoever claims it next.
update headwater.topic_claim as claim
   set member = '00000000-0000-0000-0000-000000000000'
  from unnest(%(partitions)s::integer[], %(firsts)s::bigint[], %(epochs)s::bigint[]) as given (partition, first_offset, epoch)
 where claim.group_id = %(group_id)s
   and claim.partition = given.partition
   and claim.first_offset = given.first_offset
   and claim.epoch = given.epoch;

-- name: mark_alone
-- A claim of a single message is given out.
update headwater.topic_claim
   set attempts = attempts + 1
 where group_id = %(group_id)s
   and partition = %(partition)s
   and first_offset = %(first_offset)s
   and epoch = %(epoch)s;

-- name: suspect
-- From the cursor up to here messages go out one by one, and `attempts` says whether the one at the cursor has.
update headwater.topic_cursor
   set suspect_until = %(suspect_until)s, attempts = %(attempts)s
 where group_id = %(group_id)s
   and partition = %(partition)s
   and epoch = %(epoch)s;

-- name: bury
-- By who has the epoch of the partition, or of the claim.
insert into headwater.topic_dead_letter (
    group_id, partition, message_offset, key, payload, headers, created_at, reason, attempts
)
select %(group_id)s, %(partition)s, %(offset)s, %(key)s, %(payload)s, %(headers)s::json, %(created_at)s, %(reason)s,
       %(attempts)s
 where exists (
       select
         from headwater.topic_cursor as cursor
        where cursor.group_id = %(group_id)s
          and cursor.partition = %(partition)s
          and cursor.epoch = %(epoch)s
       )
    or exists (
       select
         from headwater.topic_claim as claim
        where claim.group_id = %(group_id)s
          and claim.partition = %(partition)s
          and claim.first_offset = %(first_offset)s
          and claim.epoch = %(epoch)s
       )
on conflict (group_id, partition, message_offset)
   do update set reason = excluded.reason, attempts = excluded.attempts, died_at = excluded.died_at;

-- name: list_dead
select partition, message_offset, key, payload, headers, created_at, reason, attempts, died_at
  from headwater.topic_dead_letter
 where group_id = %(group_id)s
   and (%(partition)s::integer is null or partition = %(partition)s::integer)
   and (%(offset)s::bigint is null or message_offset = %(offset)s::bigint)
 order by partition, message_offset
 limit %(limit)s;

-- name: take_dead
delete from headwater.topic_dead_letter
 where group_id = %(group_id)s
   and (%(partition)s::integer is null or partition = %(partition)s::integer)
   and (%(offset)s::bigint is null or message_offset = %(offset)s::bigint)
returning partition, message_offset, key, payload, headers, created_at, reason, attempts, died_at;
