-- name: insert_jobs
-- Jobs that share no key with others, in their order; those who wait for a queue are woken by the commit. A row for each. What
-- is the same for all of them comes once, and its array is null, which costs a client half as much.
with given as (
    select coalesce(one.queue, %(queue)s::text) as queue,
           coalesce(one.kind, %(kind)s::text) as kind,
           one.payload::jsonb as payload,
           coalesce(one.priority, %(priority)s::smallint) as priority,
           coalesce(one.run_at, %(run_at)s::timestamptz, clock_timestamp()) as run_at,
           coalesce(one.key, %(key)s::text) as key,
           coalesce(one.trace, %(trace)s::text) as trace
      from unnest(
               %(queues)b::text[], %(kinds)b::text[], %(payloads)b::text[], %(priorities)b::smallint[],
               %(run_ats)b::timestamptz[], %(keys)b::text[], %(traces)b::text[]
           ) with ordinality as one (queue, kind, payload, priority, run_at, key, trace, place)
     order by place
), made as (
    insert into headwater.job (queue, kind, payload, priority, run_at, key, trace)
    select queue, kind, payload, priority, run_at, key, trace
      from given
    returning id
), rung as (
    select pg_notify('headwater_queue', each.queue) from (select distinct queue from given) as each where %(rings)s
)
select id from made, (select count(*) from rung) as told order by id;

-- name: enqueue_keyed
-- Jobs of which some have a key that only one may have. The ids of all, in their order.
with told as (
    select pg_notify('headwater_queue', each.queue)
      from (select distinct queue from unnest(%(queues)s::text[]) as one (queue)) as each
     where %(rings)s
)
select headwater.queue_enqueue_1(
           %(queues)s::text[], %(kinds)s::text[], %(payloads)s::jsonb[], %(priorities)s::smallint[],
           %(run_ats)s::timestamptz[], %(keys)s::text[], %(unique_keys)s::text[], %(traces)s::text[],
           %(idempotency_keys)s::text[]
       )
  from (select count(*) from told) as all_told;

-- name: enqueue_soon
-- The same, with null for the id of one whose key another transaction holds for longer than a moment: it is not enqueued.
select headwater.queue_enqueue_soon_1(
           %(queues)s::text[], %(kinds)s::text[], %(payloads)s::jsonb[], %(priorities)s::smallint[],
           %(run_ats)s::timestamptz[], %(keys)s::text[], %(unique_keys)s::text[], %(traces)s::text[],
           %(idempotency_keys)s::text[], %(moment)s
       );

-- name: ring
-- Wake those who wait for queues, after a commit; a notification is nothing that lasts, so its commit waits for no disk.
with quick as materialized (
    select set_config('synchronous_commit', 'off', true)
)
select count(pg_notify('headwater_queue', each.queue))
  from quick
 cross join unnest(%(queues)s::text[]) as each (queue);
