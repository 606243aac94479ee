-- name: insert_jobs
-- Jobs that share no key with others, in their order; those who wait for a queue are woken by the commit. A row for each.
with given as (
    select *
      from unnest(
               %(queues)b::text[], %(kinds)b::text[], %(payloads)b::text[], %(priorities)b::smallint[],
               %(run_ats)b::timestamptz[], %(keys)b::text[], %(traces)b::text[]
           ) with ordinality as one (queue, kind, payload, priority, run_at, key, trace, place)
     order by place
), made as (
    insert into headwater.job (queue, kind, payload, priority, run_at, key, trace)
    select queue, kind, payload::jsonb, priority, coalesce(run_at, clock_timestamp()), key, trace
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
