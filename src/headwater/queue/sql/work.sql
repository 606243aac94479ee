-- name: claim
select %(queue)s::text as queue, id, kind, payload, priority, run_at, key, trace, created_at, attempt, epoch, unsettled,
       lost, is_cancelled, claimed_at
  from headwater.queue_claim_1(
           %(queue)s, %(kinds)s::text[], %(most)s, %(lease)s, %(worker)s, %(sweeps)s, %(after_run_ats)s::timestamptz[],
           %(after_ids)s::bigint[]
       );

-- name: look
-- When the next job of a queue becomes due, or may begin by its rate, in how many seconds; how many seconds ago the oldest that
-- nobody has was, and of which kind it is; and whether the queue has limits. The clock is asked by itself: an index is not
-- searched by what may change.
select (
           select least(
                      extract(epoch from min(next.run_at) - clock_timestamp())::double precision,
                      headwater.queue_next_token_1(%(queue)s)
                  )
             from generate_series(0, 9) as level
            cross join lateral (
                  select job.run_at
                    from headwater.job as job
                   where job.queue = %(queue)s
                     and job.priority = level::smallint
                     and job.run_at > (select clock_timestamp())
                   order by job.run_at
                   limit 1
                  ) as next
       ) as next_seconds,
       oldest.seconds as oldest_seconds,
       oldest.kind as oldest_kind,
       exists (select from headwater.queue where name = %(queue)s and is_limited) as is_limited
  from (values (1)) as one
  left join lateral (
       select extract(epoch from clock_timestamp() - first.run_at)::double precision as seconds, first.kind
         from generate_series(0, 9) as level
        cross join lateral (
              select job.run_at, job.kind
                from headwater.job as job
               where job.queue = %(queue)s
                 and job.priority = level::smallint
                 and job.run_at <= (select clock_timestamp())
                 and (job.lease_until is null or job.lease_until < (select clock_timestamp()))
               order by job.run_at
               limit 1
              ) as first
        order by first.run_at
        limit 1
       ) as oldest on true;

-- name: look_ahead
-- Of that, only when the next one becomes due or may begin, which costs next to nothing.
select least(
           extract(epoch from min(next.run_at) - clock_timestamp())::double precision,
           headwater.queue_next_token_1(%(queue)s)
       )
  from generate_series(0, 9) as level
 cross join lateral (
       select job.run_at
         from headwater.job as job
        where job.queue = %(queue)s
          and job.priority = level::smallint
          and job.run_at > (select clock_timestamp())
        order by job.run_at
        limit 1
       ) as next;

-- name: finish
-- Here and below: asked again after a lost answer, what this claim has settled is found by its time, and what another one has is
-- not.
select id
  from headwater.queue_finish_1(%(ids)b::bigint[], %(epochs)b::integer[], %(outcome)s) as id
 union
select done.id
  from unnest(%(ids)b::bigint[], %(claimed_ats)b::timestamptz[]) as given (id, claimed_at)
  join headwater.job_done as done on done.id = given.id and done.claimed_at = given.claimed_at
 where %(is_again)s;

-- name: give_up
select id
  from headwater.queue_give_up_1(
           %(ids)b::bigint[], %(epochs)b::integer[], %(errors)s::text[], %(error_classes)s::text[]
       ) as id
 union
select dead.id
  from unnest(%(ids)b::bigint[], %(claimed_ats)b::timestamptz[]) as given (id, claimed_at)
  join headwater.job_dead as dead on dead.id = given.id and dead.claimed_at = given.claimed_at
 where %(is_again)s;

-- name: postpone
select id
  from headwater.queue_postpone_1(
           %(ids)b::bigint[], %(epochs)b::integer[], %(waits)s::interval[], %(counts)s::boolean[], %(errors)s::text[],
           %(error_classes)s::text[]
       ) as id
 union
select job.id
  from unnest(%(ids)b::bigint[], %(epochs)b::integer[]) as given (id, epoch)
  join headwater.job as job on job.id = given.id and job.epoch = given.epoch and job.lease_until is null
 where %(is_again)s;

-- name: release
select id
  from headwater.queue_release_1(%(ids)b::bigint[], %(epochs)b::integer[]) as id
 union
select job.id
  from unnest(%(ids)b::bigint[], %(epochs)b::integer[]) as given (id, epoch)
  join headwater.job as job on job.id = given.id and job.epoch = given.epoch and job.lease_until is null
 where %(is_again)s;

-- name: begin
-- Of a job whose leases have ended again and again: from here on it is to blame.
update headwater.job
   set is_begun = true
 where id = %(id)s
   and epoch = %(epoch)s;

-- name: renew
select id, is_cancelled from headwater.queue_renew_1(%(ids)b::bigint[], %(epochs)b::integer[], %(lease)s);

-- name: find_cancelled
select id
  from headwater.job
 where id = any(%(ids)b::bigint[])
   and is_cancelled;

-- name: note_cron
-- From when on a periodic job is one, at these times.
insert into headwater.job_cron (name, expression, fired_at)
values (%(name)s, %(expression)s, clock_timestamp())
    on conflict (name) do update
   set expression = excluded.expression, fired_at = excluded.fired_at
 where job_cron.expression <> excluded.expression;

-- name: read_cron
select fired_at from headwater.job_cron where name = %(name)s;

-- name: read_clock
select clock_timestamp();

-- name: fire_cron
-- Enqueue a periodic job for a time, unless that was done. The queue if it was, and nobody is woken by it otherwise.
with fired as (
    select headwater.queue_fire_1(%(name)s, %(expression)s, %(for_time)s) as is_first
), made as (
    insert into headwater.job (queue, kind, payload, priority)
    select %(queue)s, %(kind)s, %(payload)s::text::jsonb, %(priority)s
      from fired
     where fired.is_first
    returning id
)
select pg_notify('headwater_queue', %(queue)s) is not null from made;

-- name: forget
select headwater.queue_forget_1(%(kept)s);

-- name: keep_days
select headwater.queue_keep_days_1(%(kept)s);
