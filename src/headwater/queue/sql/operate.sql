-- name: grant_enqueuing
-- What an application needs to enqueue, in its transactions or by an enqueuer. It cannot read what is in jobs.
grant usage on schema headwater to {role};
grant select on headwater.migration to {role};
grant insert (id, queue, kind, payload, priority, run_at, key, unique_key, trace), select (id, kind, unique_key, is_cancelled)
   on headwater.job to {role};
grant usage on sequence headwater.job_id_seq to {role};
grant select, insert, update (job_id) on headwater.job_idempotency to {role};
grant execute on function headwater.queue_enqueue_1, headwater.queue_enqueue_soon_1 to {role};

-- name: grant_working
-- What a worker needs, beside what enqueuing takes, and who looks at jobs and cancels some. It cannot retry or purge any,
-- and sets no limits.
grant select, insert, update, delete on headwater.job, headwater.job_running to {role};
grant select on headwater.queue, headwater.job_state to {role};
grant select, insert, update on headwater.queue_bucket, headwater.job_cron to {role};
grant select, insert on headwater.job_done, headwater.job_dead to {role};
grant execute
   on function headwater.queue_take_1, headwater.queue_next_token_1, headwater.queue_choose_1, headwater.queue_claim_1,
      headwater.queue_take_over_1, headwater.queue_finish_1, headwater.queue_give_up_1, headwater.queue_postpone_1,
      headwater.queue_release_1, headwater.queue_renew_1, headwater.queue_cancel_1, headwater.queue_fire_1,
      headwater.queue_keep_days_1, headwater.queue_forget_1
   to {role};

-- name: list_jobs
-- The newest first, which the indexes on ids give without a look at the rest.
select id, queue, kind, state, attempt, priority, run_at, key, payload, created_at, claimed_at, lease_until, finished_at,
       worker, error, error_class
  from headwater.job_state
 where (%(queue)s::text is null or queue = %(queue)s)
   and (%(kind)s::text is null or kind = %(kind)s)
   and (%(state)s::text is null or state = %(state)s)
 order by id desc
 limit %(limit)s;

-- name: find_jobs
select id, queue, kind, state, attempt, priority, run_at, key, payload, created_at, claimed_at, lease_until, finished_at,
       worker, error, error_class
  from headwater.job_state
 where id = any(%(ids)s::bigint[])
 order by id;

-- name: find_more
-- What only jobs have that are not finished, or were given up.
select unique_key, trace, is_cancelled from headwater.job where id = %(id)s
 union all
select unique_key, trace, false from headwater.job_dead where id = %(id)s;

-- name: find_live_ids
-- Some at a time, in the order of their ids.
select id
  from headwater.job
 where (%(queue)s::text is null or queue = %(queue)s)
   and (%(kind)s::text is null or kind = %(kind)s)
   and id > %(after)s
 order by id
 limit %(limit)s;

-- name: count_live_of
select count(*)
  from headwater.job
 where (%(queue)s::text is null or queue = %(queue)s)
   and (%(kind)s::text is null or kind = %(kind)s);

-- name: find_dead_ids
-- As above, of those that were given up.
select id
  from headwater.job_dead
 where (%(queue)s::text is null or queue = %(queue)s)
   and (%(kind)s::text is null or kind = %(kind)s)
   and id > %(after)s
 order by id
 limit %(limit)s;

-- name: retry
select id from headwater.queue_retry_1(%(ids)s::bigint[]) as id;

-- name: cancel
select id, was_claimed from headwater.queue_cancel_1(%(ids)s::bigint[]);

-- name: count_dead_before
select count(*) from headwater.job_dead where finished_at < %(before)s;

-- name: purge_dead
delete from headwater.job_dead where finished_at < %(before)s;

-- name: purge_days
-- Whole days that ended before a time are dropped. How many were.
select headwater.queue_keep_days_1(clock_timestamp() - %(before)s::timestamptz);

-- name: purge_done
-- What is left of a day that is not over at that time; days without any are not looked at.
delete from headwater.job_done where finished_at < %(before)s;

-- name: read_clock
select clock_timestamp();

-- name: count_live
-- Jobs that are not finished, by queue and kind. A claim whose lease has ended is due again.
with now as materialized (
    select clock_timestamp() as at
)
select job.queue,
       job.kind,
       count(*) filter (where job.lease_until is null and job.run_at > now.at) as scheduled,
       count(*) filter (where job.run_at <= now.at and (job.lease_until is null or job.lease_until < now.at)) as due,
       count(*) filter (where job.lease_until >= now.at) as claimed,
       extract(epoch from now.at - min(job.run_at) filter (
           where job.run_at <= now.at and (job.lease_until is null or job.lease_until < now.at)
       ))::double precision as oldest_seconds
  from headwater.job as job
 cross join now
 group by job.queue, job.kind, now.at
 order by job.queue, job.kind;

-- name: count_dead
select queue, count(*) as jobs from headwater.job_dead group by queue;

-- name: read_limits
select name as queue, is_paused, is_ordered, most_running, most_running_per_key, rate, rate_per, rate_per_key,
       rate_per_key_per
  from headwater.queue
 where %(queue)s::text is null
    or name = %(queue)s
 order by name;

-- name: measure_days
-- What is kept of finished jobs, by day, from the server's statistics: to count a million rows would take its time.
select pg_catalog.substring(class.relname, '^job_done_([0-9]{8})$') as day,
       greatest(class.reltuples::bigint, pg_catalog.pg_stat_get_live_tuples(class.oid), 0) as jobs,
       pg_catalog.pg_total_relation_size(class.oid) as bytes
  from pg_catalog.pg_inherits as part
  join pg_catalog.pg_class as class on class.oid = part.inhrelid
 where part.inhparent = 'headwater.job_done'::regclass
 order by class.relname;

-- name: count_done
-- In the last hour and in the last day. That reads all of two days.
select queue, count(*) filter (where finished_at > now() - interval '1 hour') as last_hour, count(*) as last_day
  from headwater.job_done
 where finished_at > now() - interval '1 day'
   and outcome = 'done'
 group by queue;

-- name: count_workers
-- Those that are connected, by the name that their connection for claims has; a pooler may hide some.
select count(*)
  from pg_catalog.pg_stat_activity
 where datname = pg_catalog.current_database()
   and application_name = 'headwater queue claims';

-- name: list_cron
select name, expression, fired_at from headwater.job_cron order by name;

-- name: is_known
-- Whether a queue has a job, or had one of late: of those that are done, only the last ones are looked at.
select exists (select from headwater.job where queue = %(queue)s)
    or exists (select from headwater.job_dead where queue = %(queue)s)
    or exists (
       select
         from (select done.queue from headwater.job_done as done order by done.id desc limit 10000) as last
        where last.queue = %(queue)s
       );

-- name: hold_claims
-- Until the transaction ends: claims that are under way have ended, and none begins.
select pg_advisory_xact_lock(hashtextextended('headwater.queue limits ' || %(queue)s, 0));

-- name: pause
insert into headwater.queue (name, is_paused)
values (%(queue)s, %(is_paused)s)
    on conflict (name) do update
   set is_paused = excluded.is_paused;

-- name: limit
insert into headwater.queue (
    name, is_ordered, most_running, most_running_per_key, rate, rate_per, rate_per_key, rate_per_key_per
)
values (
    %(queue)s, %(is_ordered)s, %(most_running)s, %(most_running_per_key)s, %(rate)s, %(rate_per)s, %(rate_per_key)s,
    %(rate_per_key_per)s
)
    on conflict (name) do update
   set is_ordered = excluded.is_ordered,
       most_running = excluded.most_running,
       most_running_per_key = excluded.most_running_per_key,
       rate = excluded.rate,
       rate_per = excluded.rate_per,
       rate_per_key = excluded.rate_per_key,
       rate_per_key_per = excluded.rate_per_key_per;

-- name: count_in
-- Those that were claimed while the queue had no limits count for new ones too.
insert into headwater.job_running (job_id, queue, key)
select id, queue, key
  from headwater.job
 where queue = %(queue)s
   and lease_until is not null
    on conflict do nothing;
