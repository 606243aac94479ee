-- name: list_subscriptions
-- All of them, with how far the stream that each is in has been read.
select known.topic,
       known.target,
       known.lsn,
       known."timestamp" as at,
       known.active as is_active,
       known.stream,
       known.identity,
       known.sequence,
       known.begun,
       known.generation,
       known.is_behind,
       known.snapshot,
       known.until_lsn,
       known.skip_lsn,
       known.error,
       read.sequence as read_to,
       (read.begun ->> known.topic)::bigint as read_begun
  from headwater.subscriptions as known
  left join headwater.streams as read on read.stream = known.stream and read.identity = known.identity
 order by known.target;

-- name: hold_subscriptions
-- Those of some targets that are active, and nobody else's until the transaction ends.
select known.topic,
       known.target,
       known.lsn,
       known."timestamp" as at,
       known.active as is_active,
       known.stream,
       known.identity,
       known.sequence,
       known.begun,
       known.generation,
       known.is_behind,
       known.snapshot,
       known.until_lsn,
       known.skip_lsn,
       known.error,
       read.sequence as read_to,
       (read.begun ->> known.topic)::bigint as read_begun
  from headwater.subscriptions as known
  left join headwater.streams as read on read.stream = known.stream and read.identity = known.identity
 where known.target = any(%(targets)s)
 order by known.target
   for no key update of known;

-- name: move_subscriptions
-- How far some are once the transaction is committed; of one that had nothing to apply, lsn and time stay. Once a change is
-- applied that came after a snapshot, what says which changes its rows hold is not needed any more: positions of a source that
-- was restored may begin low again.
update headwater.subscriptions as known
   set sequence = %(sequence)s,
       begun = moved.begun,
       lsn = coalesce(moved.lsn::pg_lsn, known.lsn),
       "timestamp" = coalesce(moved.at, known."timestamp"),
       snapshot = case when not moved.is_joined then known.snapshot end,
       until_lsn = case when not moved.is_joined then known.until_lsn end,
       skip_lsn = case when not moved.is_joined then known.skip_lsn end
  from unnest(
           %(targets)s::text[], %(begun)s::bigint[], %(lsns)s::text[], %(ats)s::timestamptz[], %(joined)s::boolean[]
       ) as moved (target, begun, lsn, at, is_joined)
 where known.target = moved.target;

-- name: place_subscription
-- Where a subscription begins that has no place in the stream yet; what an earlier consumer has applied is skipped.
update headwater.subscriptions
   set stream = %(stream)s,
       identity = %(identity)s,
       sequence = %(sequence)s,
       begun = null,
       is_behind = true,
       generation = generation + 1,
       skip_lsn = coalesce(skip_lsn, lsn)
 where target = %(target)s
   and sequence is null;

-- name: fail_subscription
-- Why a subscription cannot go on from its place, which is kept: the stream goes on without it. A snapshot, or adding it
-- again, clears it. What was applied since its place was looked up stays applied.
update headwater.subscriptions
   set error = %(error)s,
       generation = generation + 1,
       is_behind = true,
       sequence = greatest(sequence, %(sequence)s::bigint),
       begun = case when sequence > %(sequence)s::bigint then begun else %(begun)s::bigint end
 where target = %(target)s
   and generation = %(generation)s;

-- name: retry_failed
-- Whatever kept a table from going on may have been put right; if not, it is said again.
update headwater.subscriptions
   set error = null
 where active
   and error is not null;

-- name: advance_subscriptions
-- Tables that are read by themselves are at a sequence, unless they have begun anew meanwhile; with `is_settled` they have
-- come to where the others of their stream are. The rows are those that are not even where they were before.
with advanced as (
    select target, generation, begun
      from unnest(%(targets)s::text[], %(generations)s::bigint[], %(begun)s::bigint[]) as listed (target, generation, begun)
),
moved as (
    update headwater.subscriptions as known
       set is_behind = not %(is_settled)s,
           sequence = greatest(known.sequence, %(sequence)s),
           begun = case when known.sequence > %(sequence)s then known.begun else advanced.begun end
      from advanced
     where known.target = advanced.target
       and known.generation = advanced.generation
)
select known.target
  from headwater.subscriptions as known
  join advanced on advanced.target = known.target and advanced.generation = known.generation
 where known.sequence < %(start)s;

-- name: part_subscriptions
-- Those that go on with a stream are read by themselves from now on, each from where it is.
update headwater.subscriptions as known
   set is_behind = true,
       generation = known.generation + 1,
       sequence = greatest(known.sequence, read.sequence),
       begun = case when known.sequence >= read.sequence then known.begun else (read.begun ->> known.topic)::bigint end
  from headwater.streams as read
 where read.stream = %(stream)s
   and read.identity = %(identity)s
   and known.stream = read.stream
   and known.identity = read.identity
   and not known.is_behind;

-- name: save_stream
-- A stream is read up to a sequence, and what came is applied; the place in one and the same stream never moves back. There
-- is a row if it is not even where it was before, or was written down before and is not there.
with saved as (
    insert into headwater.streams as known (stream, identity, sequence, begun, updated_at)
    values (%(stream)s, %(identity)s, %(sequence)s, %(begun)s::jsonb, now())
        on conflict (stream) do update
       set identity = excluded.identity,
           sequence = excluded.sequence,
           begun = excluded.begun,
           updated_at = excluded.updated_at
     where known.identity <> excluded.identity
        or known.sequence <= excluded.sequence
)
select %(stream)s::text
 where exists (
           select
             from headwater.streams as before
            where before.stream = %(stream)s
              and before.identity = %(identity)s
              and before.sequence < %(start)s
       )
    or (%(is_known)s and not exists (select from headwater.streams as before where before.stream = %(stream)s));

-- name: find_stream
-- How far a stream was read, if it is the one that has this name now.
select read.stream, read.identity, read.sequence, read.begun
  from headwater.streams as read
 where read.stream = %(stream)s
   and read.identity = %(identity)s;

-- name: lock_target
-- Make sure of the row of a target, and that nobody else applies anything to it until the transaction ends.
insert into headwater.subscriptions as known (topic, target, active)
values (%(topic)s, %(target)s, false)
    on conflict (target) do update set target = excluded.target
returning known.topic;

-- name: save_loaded
-- The rows of a snapshot are in: the changes of the table go on from a sequence, without those that the rows hold.
update headwater.subscriptions
   set topic = %(topic)s,
       lsn = %(lsn)s,
       "timestamp" = %(at)s,
       stream = %(stream)s,
       identity = %(identity)s,
       sequence = %(sequence)s,
       begun = null,
       generation = generation + 1,
       is_behind = true,
       snapshot = %(snapshot)s,
       until_lsn = %(until_lsn)s,
       skip_lsn = %(skip_lsn)s,
       error = null
 where target = %(target)s;

-- name: add_table
select headwater.add_table(%(mapping)s);

-- name: remove_table
select headwater.remove_table(%(mapping)s);

-- name: ask_for_snapshot
select headwater.snapshot(%(mapping)s, %(mode)s);

-- name: listen
-- The channel is Creek's.
listen creek_consumer;

-- name: take_request
-- The next one of those that wait; whoever takes it has the right to serve.
update headwater.requests as request
   set state = 'running', started_at = now()
 where request.id = (
           select next.id from headwater.requests as next where next.state = 'waiting' order by next.id limit 1
       )
returning request.id, request.kind, request.topic, request.target, request.mode, request.name, request.command;

-- name: return_requests
-- Those that a consumer had begun, and did not end.
update headwater.requests
   set state = 'waiting', started_at = null
 where state = 'running';

-- name: end_request
-- What became of a request.
with ended as (
    update headwater.requests
       set state = case when %(error)s::text is null then 'done' else 'failed' end,
           ended_at = now(),
           error = %(error)s
     where id = %(id)s
    returning command, error
)
select headwater.log_notification(ended.command, coalesce(ended.error, 'ok'))
  from ended;
