-- Jobs: what is to be done, who does it, and what became of it. Nothing of an earlier release uses these tables.

-- How a queue is worked off. One that has no row here has no limits.
create table headwater.queue (
    name text primary key,
    is_paused boolean not null default false,
    -- Jobs of a key one at a time, in the order in which they were enqueued.
    is_ordered boolean not null default false,
    most_running integer,
    most_running_per_key integer,
    -- So many may begin within a time, all in all and of each key.
    rate integer,
    rate_per interval not null default interval '1 second',
    rate_per_key integer,
    rate_per_key_per interval not null default interval '1 second',
    is_limited boolean not null generated always as (
        is_ordered
        or most_running is not null
        or most_running_per_key is not null
        or rate is not null
        or rate_per_key is not null
    ) stored,
    constraint queue_name check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    constraint queue_most_running check (most_running > 0),
    constraint queue_most_running_per_key check (most_running_per_key > 0),
    constraint queue_rate check (rate > 0 and rate_per > interval '0'),
    constraint queue_rate_per_key check (rate_per_key > 0 and rate_per_key_per > interval '0')
);

-- What is left of a rate, of a queue (with the key '') or of one of its keys.
create table headwater.queue_bucket (
    queue text not null,
    key text not null,
    tokens double precision not null,
    filled_at timestamptz not null,
    primary key (queue, key)
) with (fillfactor = 50);

-- Jobs that are not finished. Nothing that a claim changes is in an index, so that claims and renewals are HOT updates; one
-- that is claimed stays in the index of due jobs until it is finished, and there are never many of those.
create table headwater.job (
    id bigint generated always as identity primary key,
    queue text not null default 'default',
    kind text not null,
    payload jsonb not null default 'null',
    priority smallint not null default 0,
    run_at timestamptz not null default clock_timestamp(),
    key text,
    unique_key text,
    -- The trace that it is part of, as a traceparent.
    trace text,
    created_at timestamptz not null default clock_timestamp(),
    -- How often it was claimed to be tried, and how often at all: whoever has an older epoch may not settle it any more.
    attempt integer not null default 0,
    epoch integer not null default 0,
    -- How many of these attempts ended with their lease and nothing settled, which is no failure of the job; and how many it is
    -- to blame for all the same. From the third on that is only if it was begun, which is written down from then on: others that
    -- wait beside one that kills its worker are not to blame.
    unsettled integer not null default 0,
    lost smallint not null default 0,
    is_begun boolean not null default false,
    claimed_at timestamptz,
    lease_until timestamptz,
    worker text,
    is_cancelled boolean not null default false,
    error text,
    error_class text,
    -- What else a name may be is asked where it is given: a pattern costs as much as all the rest of the row.
    constraint job_queue check (queue <> '' and length(queue) <= 100),
    constraint job_kind check (kind <> '' and length(kind) <= 200),
    constraint job_priority check (priority between 0 and 9),
    -- Such as all can read who work.
    constraint job_run_at check (run_at between '1000-01-01 00:00+00' and '9999-01-01 00:00+00')
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

create index job_due on headwater.job (queue, priority, run_at, id);
create index job_key on headwater.job (queue, key, id) where key is not null;
create unique index job_unique on headwater.job (kind, unique_key) where unique_key is not null;

comment on table headwater.job is 'Jobs that are scheduled (lease_until is null) or claimed. A bare insert enqueues one: kind is all it needs.';

-- Which of the jobs in queues with limits are claimed.
create table headwater.job_running (
    job_id bigint primary key,
    queue text not null,
    key text
);

create index job_running_key on headwater.job_running (queue, key);

-- By which a client that asks again gets the job that it has enqueued before, also when that is finished.
create table headwater.job_idempotency (
    kind text not null,
    key text not null,
    job_id bigint not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (kind, key)
);

create index job_idempotency_created on headwater.job_idempotency (created_at);

-- Jobs that are finished, by day; whole days are dropped.
create table headwater.job_done (
    id bigint not null,
    queue text not null,
    kind text not null,
    payload jsonb not null,
    priority smallint not null,
    run_at timestamptz not null,
    key text,
    created_at timestamptz not null,
    attempt integer not null,
    claimed_at timestamptz,
    worker text,
    outcome text not null,
    finished_at timestamptz not null,
    constraint job_done_outcome check (outcome in ('done', 'cancelled'))
) partition by range (finished_at);

create index job_done_id on headwater.job_done (id);

-- Until a day has its own.
create table headwater.job_done_rest partition of headwater.job_done default;

-- Jobs that were given up, with the reason; they are here until somebody retries or purges them.
create table headwater.job_dead (
    id bigint primary key,
    queue text not null,
    kind text not null,
    payload jsonb not null,
    priority smallint not null,
    run_at timestamptz not null,
    key text,
    unique_key text,
    trace text,
    created_at timestamptz not null,
    attempt integer not null,
    -- From where it goes on if it is retried: whoever had it before may not settle it then.
    epoch integer not null default 0,
    claimed_at timestamptz,
    worker text,
    error text,
    error_class text,
    finished_at timestamptz not null default clock_timestamp()
);

create view headwater.job_state as
select id, queue, kind, case when lease_until is null then 'scheduled' else 'claimed' end as state, attempt, priority, run_at,
       key, payload, created_at, claimed_at, lease_until, null::timestamptz as finished_at, worker, error, error_class
  from headwater.job
 union all
select id, queue, kind, 'error', attempt, priority, run_at, key, payload, created_at, claimed_at, null, finished_at, worker,
       error, error_class
  from headwater.job_dead
 union all
select id, queue, kind, outcome, attempt, priority, run_at, key, payload, created_at, claimed_at, null, finished_at, worker,
       null, null
  from headwater.job_done;

comment on view headwater.job_state is 'All jobs: scheduled, claimed, done, cancelled or error.';

-- Jobs that come again and again: when each was enqueued the last time, by whichever worker was the first to.
create table headwater.job_cron (
    name text primary key,
    expression text not null,
    fired_at timestamptz not null
);

-- Enqueue jobs of which some have a key that they share with others: returns the id of each, which may be that of a job that is
-- there. Whoever has written the same key and not committed yet is waited for.
create function headwater.queue_enqueue_1(
    queues text[],
    kinds text[],
    payloads jsonb[],
    priorities smallint[],
    run_ats timestamptz[],
    keys text[],
    unique_keys text[],
    traces text[],
    idempotency_keys text[]
) returns bigint[]
    language plpgsql
as $$
declare
    ids bigint[];
    drawn bigint;
    known bigint;
begin
    for place in 1 .. cardinality(kinds) loop
        drawn := nextval(pg_get_serial_sequence('headwater.job', 'id'));
        if idempotency_keys[place] is not null then
            insert into headwater.job_idempotency (kind, key, job_id)
            values (kinds[place], idempotency_keys[place], drawn)
                on conflict do nothing;
            if not found then
                select job_id into known
                  from headwater.job_idempotency
                 where kind = kinds[place]
                   and key = idempotency_keys[place];
                if not found then
                    raise exception 'another transaction has enqueued the job of the same idempotency key; try again'
                        using errcode = 'serialization_failure';
                end if;
                ids[place] := known;
                continue;
            end if;
        end if;
        loop
            insert into headwater.job (id, queue, kind, payload, priority, run_at, key, unique_key, trace)
            overriding system value
            values (
                drawn, queues[place], kinds[place], payloads[place], priorities[place],
                coalesce(run_ats[place], clock_timestamp()), keys[place], unique_keys[place], traces[place]
            )
                on conflict (kind, unique_key) where unique_key is not null do nothing;
            if found then
                ids[place] := drawn;
                exit;
            end if;
            select id into known from headwater.job where kind = kinds[place] and unique_key = unique_keys[place];
            if found then
                ids[place] := known;
                update headwater.job_idempotency
                   set job_id = known
                 where kind = kinds[place]
                   and key = idempotency_keys[place];
                exit;
            end if;
            -- It was finished in between; or it is another's that this transaction may not see.
            if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
                raise exception 'another transaction has enqueued the unique job; try again'
                    using errcode = 'serialization_failure';
            end if;
        end loop;
    end loop;
    return ids;
end
$$;

-- The same, and nobody is waited for who holds a key for longer than a moment: such a job has no id, and is not enqueued.
create function headwater.queue_enqueue_soon_1(
    queues text[],
    kinds text[],
    payloads jsonb[],
    priorities smallint[],
    run_ats timestamptz[],
    keys text[],
    unique_keys text[],
    traces text[],
    idempotency_keys text[],
    moment interval
) returns bigint[]
    language plpgsql
as $$
declare
    ids bigint[];
begin
    perform set_config('lock_timeout', ceil(extract(epoch from moment) * 1000)::text, true);
    begin
        return headwater.queue_enqueue_1(
            queues, kinds, payloads, priorities, run_ats, keys, unique_keys, traces, idempotency_keys
        );
    exception when lock_not_available then
        -- That was the moment; which of them are held shows one by one.
        perform set_config('lock_timeout', '1', true);
    end;
    for place in 1 .. cardinality(kinds) loop
        begin
            ids[place] := (headwater.queue_enqueue_1(
                queues[place:place], kinds[place:place], payloads[place:place], priorities[place:place],
                run_ats[place:place], keys[place:place], unique_keys[place:place], traces[place:place],
                idempotency_keys[place:place]
            ))[1];
        exception when lock_not_available then
            ids[place] := null;
        end;
    end loop;
    return ids;
end
$$;

-- How many tokens of a rate are there, up to as many as are wanted; with `takes` they are taken. One at a time does that.
create function headwater.queue_take_1(
    of_queue text, of_key text, wanted integer, rate integer, rate_per interval, at timestamptz, takes boolean
) returns integer
    language plpgsql
as $$
declare
    bucket headwater.queue_bucket;
    there double precision := rate;
    taken integer;
begin
    select * into bucket from headwater.queue_bucket where queue = of_queue and key = of_key;
    if found then
        there := least(
            rate,
            bucket.tokens
            + rate * extract(epoch from greatest(at - bucket.filled_at, interval '0')) / extract(epoch from rate_per)
        );
    end if;
    taken := least(wanted, floor(there)::integer);
    if takes and taken > 0 then
        -- Who has waited for his turn has an earlier time than the one before him.
        insert into headwater.queue_bucket as kept (queue, key, tokens, filled_at)
        values (of_queue, of_key, there - taken, at)
            on conflict (queue, key) do update
           set tokens = excluded.tokens, filled_at = greatest(kept.filled_at, excluded.filled_at);
    end if;
    return taken;
end
$$;

-- In how many seconds the next token of a rate is there, of a queue or of one of the keys that wait in it; null if none is
-- missing. What waits behind a thousand others is not looked at.
create function headwater.queue_next_token_1(of_queue text) returns double precision
    language plpgsql
    set enable_seqscan = off
as $$
declare
    at timestamptz := clock_timestamp();
    found_queue headwater.queue;
begin
    select * into found_queue from headwater.queue where name = of_queue and (rate is not null or rate_per_key is not null);
    if not found then
        return null;
    end if;
    return (
        with waiting as (
            select distinct first.key
              from generate_series(0, 9) as level
             cross join lateral (
                   select job.key
                     from headwater.job as job
                    where job.queue = of_queue
                      and job.priority = level::smallint
                      and job.run_at <= at
                      and job.lease_until is null
                    order by job.run_at, job.id
                    limit case when found_queue.rate_per_key is null then 0 else 1000 end
                   ) as first
        ), missing as (
            select (1 - bucket.tokens) * extract(epoch from found_queue.rate_per) / found_queue.rate
                   - extract(epoch from at - bucket.filled_at) as seconds
              from headwater.queue_bucket as bucket
             where bucket.queue = of_queue
               and bucket.key = ''
             union all
            select (1 - bucket.tokens) * extract(epoch from found_queue.rate_per_key_per) / found_queue.rate_per_key
                   - extract(epoch from at - bucket.filled_at)
              from waiting
              join headwater.queue_bucket as bucket on bucket.queue = of_queue and bucket.key = waiting.key
        )
        select min(seconds) from missing where seconds > 0
    );
end
$$;

-- Which jobs of a queue with limits may begin now. One at a time decides that, so that no limit is passed. To look at a job
-- writes nothing, and each key that is held up is looked at once.
create function headwater.queue_choose_1(of_queue headwater.queue, of_kinds text[], most integer, at timestamptz)
    returns bigint[]
    language plpgsql
    set enable_seqscan = off
as $$
declare
    chosen bigint[] := '{}';
    room integer := most;
    -- An earlier one may come late, when a later one is in hand: its transaction took long, or it was given up and is retried.
    most_of_key integer := case when of_queue.is_ordered then 1 else of_queue.most_running_per_key end;
    one record;
    taken bigint;
    -- Keys of which no more may begin now: each is looked at once, however many of its jobs wait.
    held_up text[] := '{}';
begin
    perform pg_advisory_xact_lock(hashtextextended('headwater.queue ' || of_queue.name, 0));
    if of_queue.most_running is not null then
        room := least(room, of_queue.most_running - (
            select count(*)
              from headwater.job_running as running
              join headwater.job as job on job.id = running.job_id
             where running.queue = of_queue.name
               and job.lease_until > at
        )::integer);
    end if;
    if of_queue.rate is not null and room > 0 then
        room := headwater.queue_take_1(of_queue.name, '', room, of_queue.rate, of_queue.rate_per, at, false);
    end if;
    if room > 0 then
        <<levels>>
        for level in reverse 9 .. 0 loop
            for one in
                select job.id, job.key
                  from headwater.job as job
                 where job.queue = of_queue.name
                   and job.priority = level
                   and job.run_at <= at
                   and (job.lease_until is null or job.lease_until < at)
                   and job.kind = any(of_kinds)
                 order by job.run_at, job.id
            loop
                continue when one.key = any(held_up);
                taken := one.id;
                if one.key is not null then
                    if most_of_key is not null and most_of_key <= (
                        select count(*)
                          from headwater.job_running as running
                          join headwater.job as job on job.id = running.job_id
                         where running.queue = of_queue.name
                           and running.key = one.key
                           and (job.lease_until > at or job.id = any(chosen))
                    ) then
                        held_up := held_up || one.key;
                        continue;
                    end if;
                    if of_queue.is_ordered then
                        -- The first of its key, whatever its priority is, or none.
                        held_up := held_up || one.key;
                        select first.id into taken
                          from (
                              select job.id, job.run_at, job.lease_until, job.kind
                                from headwater.job as job
                               where job.queue = of_queue.name
                                 and job.key = one.key
                               order by job.id
                               limit 1
                          ) as first
                         where first.run_at <= at
                           and (first.lease_until is null or first.lease_until < at)
                           and first.kind = any(of_kinds);
                        continue when taken is null;
                    end if;
                end if;
                -- Locked only now: to look at a job writes nothing.
                perform
                   from headwater.job as job
                  where job.id = taken
                    and (job.lease_until is null or job.lease_until < at)
                    for update skip locked;
                continue when not found;
                if one.key is not null and of_queue.rate_per_key is not null and 0 = headwater.queue_take_1(
                    of_queue.name, one.key, 1, of_queue.rate_per_key, of_queue.rate_per_key_per, at, true
                ) then
                    held_up := held_up || one.key;
                    continue;
                end if;
                insert into headwater.job_running (job_id, queue, key)
                values (taken, of_queue.name, one.key)
                    on conflict do nothing;
                chosen := chosen || taken;
                exit levels when cardinality(chosen) >= room;
            end loop;
        end loop;
    end if;
    if of_queue.rate is not null and chosen <> '{}' then
        perform headwater.queue_take_1(
            of_queue.name, '', cardinality(chosen), of_queue.rate, of_queue.rate_per, at, true
        );
    end if;
    return chosen;
end
$$;

-- Claim due jobs of a queue, the most urgent and then the oldest first, also those whose lease has ended. By default those
-- that became due of late are looked at, which costs the same however many are finished and not vacuumed yet; with places, by
-- priority, those after them; and with `sweeps` all. Nothing is written if there are none.
create function headwater.queue_claim_1(
    of_queue text,
    of_kinds text[],
    most integer,
    lease interval,
    of_worker text,
    sweeps boolean,
    after_run_ats timestamptz[],
    after_ids bigint[]
) returns table (
    id bigint, kind text, payload jsonb, priority smallint, run_at timestamptz, key text, trace text, created_at timestamptz,
    attempt integer, epoch integer, unsettled integer, lost smallint, is_cancelled boolean, claimed_at timestamptz
)
    language plpgsql
    -- Plans are kept, and made when the table may still be empty.
    set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    found_queue headwater.queue;
    chosen bigint[];
    room integer := most;
    got integer;
begin
    -- Limits do not change until this claim has ended.
    perform pg_advisory_xact_lock_shared(hashtextextended('headwater.queue limits ' || of_queue, 0));
    select * into found_queue from headwater.queue where name = of_queue;
    if found_queue.is_paused then
        return;
    end if;
    if found_queue.is_limited then
        chosen := headwater.queue_choose_1(found_queue, of_kinds, most, at);
        if chosen <> '{}' then
            return query select * from headwater.queue_take_over_1(chosen, at, at + lease, of_worker);
        end if;
        return;
    end if;
    for level in reverse 9 .. 0 loop
        chosen := array(
            select job.id
              from headwater.job as job
             where job.queue = of_queue
               and job.priority = level
               and (job.run_at, job.id) > (
                   case
                       when sweeps then '-infinity'
                       else coalesce(after_run_ats[level + 1], at - interval '5 seconds')
                   end,
                   coalesce(after_ids[level + 1], 0)
               )
               and job.run_at <= at
               and (job.lease_until is null or job.lease_until < at)
               and job.kind = any(of_kinds)
             order by job.run_at, job.id
             limit room
               for update skip locked
        );
        continue when chosen = '{}';
        return query select * from headwater.queue_take_over_1(chosen, at, at + lease, of_worker);
        got := cardinality(chosen);
        room := room - got;
        exit when room <= 0;
    end loop;
end
$$;

create function headwater.queue_take_over_1(chosen bigint[], at timestamptz, until timestamptz, of_worker text)
    returns table (
        id bigint, kind text, payload jsonb, priority smallint, run_at timestamptz, key text, trace text,
        created_at timestamptz, attempt integer, epoch integer, unsettled integer, lost smallint, is_cancelled boolean, claimed_at timestamptz
    )
    language plpgsql
    set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
    update headwater.job as job
       set claimed_at = at, lease_until = until, worker = of_worker, epoch = job.epoch + 1, is_begun = false,
           attempt = job.attempt + 1, unsettled = job.unsettled + (job.lease_until is not null)::integer,
           lost = job.lost + (job.lease_until is not null and (job.lost < 3 or job.is_begun))::integer
     where job.id = any(chosen)
    returning job.id, job.kind, job.payload, job.priority, job.run_at, job.key, job.trace, job.created_at, job.attempt, job.epoch,
              job.unsettled, job.lost, job.is_cancelled, job.claimed_at;
end
$$;

-- Jobs that were claimed and are finished. Returns those that were this one's to finish: others have been claimed by somebody
-- else, who runs them then as far as limits are concerned, or finished already.
create function headwater.queue_finish_1(ids bigint[], epochs integer[], of_outcome text) returns setof bigint
    language plpgsql
    set enable_seqscan = off
    -- Found by their keys, and then by a hash: loops in loops are what a planner takes for few.
    set enable_nestloop = off
    set enable_mergejoin = off
as $$
begin
    return query
    with gone as (
        delete from headwater.job as job
         using unnest(ids, epochs) as given (id, epoch)
         where job.id = given.id
           and job.id = any(ids)
           and job.epoch = given.epoch
           and job.lease_until is not null
        returning job.*
    ), freed as (
        delete from headwater.job_running as running
         using gone
         where running.job_id = gone.id
    )
    insert into headwater.job_done (
        id, queue, kind, payload, priority, run_at, key, created_at, attempt, claimed_at, worker, outcome, finished_at
    )
    select gone.id, gone.queue, gone.kind, gone.payload, gone.priority, gone.run_at, gone.key, gone.created_at, gone.attempt,
           gone.claimed_at, gone.worker, of_outcome, clock_timestamp()
      from gone
    returning job_done.id;
end
$$;

-- Jobs that were claimed and are not to be tried again. Returns as above.
create function headwater.queue_give_up_1(ids bigint[], epochs integer[], errors text[], error_classes text[])
    returns setof bigint
    language plpgsql
    set enable_seqscan = off
    -- Found by their keys, and then by a hash: loops in loops are what a planner takes for few.
    set enable_nestloop = off
    set enable_mergejoin = off
as $$
begin
    return query
    with gone as (
        delete from headwater.job as job
         using unnest(ids, epochs, errors, error_classes) as given (id, epoch, error, error_class)
         where job.id = given.id
           and job.id = any(ids)
           and job.epoch = given.epoch
           and job.lease_until is not null
        returning job.*, given.error as new_error, given.error_class as new_error_class
    ), freed as (
        delete from headwater.job_running as running
         using gone
         where running.job_id = gone.id
    )
    insert into headwater.job_dead (
        id, queue, kind, payload, priority, run_at, key, unique_key, trace, created_at, attempt, epoch, claimed_at, worker,
        error, error_class
    )
    select gone.id, gone.queue, gone.kind, gone.payload, gone.priority, gone.run_at, gone.key, gone.unique_key, gone.trace,
           gone.created_at, gone.attempt, gone.epoch, gone.claimed_at, gone.worker, gone.new_error, gone.new_error_class
      from gone
    returning job_dead.id;
end
$$;

-- Jobs that were claimed and are to be tried again after some time; it counts as an attempt or not. Returns as above.
create function headwater.queue_postpone_1(
    ids bigint[], epochs integer[], waits interval[], counts boolean[], errors text[], error_classes text[]
) returns setof bigint
    language plpgsql
    set enable_seqscan = off
    -- Found by their keys, and then by a hash: loops in loops are what a planner takes for few.
    set enable_nestloop = off
    set enable_mergejoin = off
as $$
begin
    return query
    with given_back as (
        update headwater.job as job
           -- What is cancelled is so when it is claimed the next time, for which nobody should wait.
           set run_at = clock_timestamp() + case when job.is_cancelled then interval '0' else given.wait end,
               claimed_at = null, lease_until = null, worker = null,
               attempt = job.attempt - (not given.counts)::integer,
               -- That a worker was stopped does not hide what the job has failed with before.
               error = case
                   when given.counts or job.error is null then given.error
                   when job.error_class = given.error_class then job.error
                   else given.error || '; before that: ' || job.error
               end,
               error_class = given.error_class
          from unnest(ids, epochs, waits, counts, errors, error_classes)
               as given (id, epoch, wait, counts, error, error_class)
         where job.id = given.id
           and job.id = any(ids)
           and job.epoch = given.epoch
           and job.lease_until is not null
        returning job.id
    ), freed as (
        delete from headwater.job_running as running
         using given_back
         where running.job_id = given_back.id
    )
    select given_back.id from given_back;
end
$$;

-- Jobs that were claimed and not begun: as if they had not been. Returns as above.
create function headwater.queue_release_1(ids bigint[], epochs integer[]) returns setof bigint
    language plpgsql
    set enable_seqscan = off
    -- Found by their keys, and then by a hash: loops in loops are what a planner takes for few.
    set enable_nestloop = off
    set enable_mergejoin = off
as $$
begin
    return query
    with given_back as (
        update headwater.job as job
           set claimed_at = null, lease_until = null, worker = null, attempt = job.attempt - 1
          from unnest(ids, epochs) as given (id, epoch)
         where job.id = given.id
           and job.id = any(ids)
           and job.epoch = given.epoch
           and job.lease_until is not null
        returning job.id
    ), freed as (
        delete from headwater.job_running as running
         using given_back
         where running.job_id = given_back.id
    )
    select given_back.id from given_back;
end
$$;

-- Have a lease last longer from now on; which jobs are not this one's any more, and which are to be cancelled, is told. Where
-- there are limits, one that has ended is lost, also if nobody has the job yet: another may have begun in its place.
create function headwater.queue_renew_1(ids bigint[], epochs integer[], lease interval)
    returns table (id bigint, is_cancelled boolean)
    language plpgsql
    set enable_seqscan = off
    -- Found by their keys, and then by a hash: loops in loops are what a planner takes for few.
    set enable_nestloop = off
    set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    of_queue text;
begin
    -- Who chooses meanwhile would take one that is about to be renewed for one that has ended.
    for of_queue in
        select distinct running.queue from headwater.job_running as running where running.job_id = any(ids) order by 1
    loop
        perform pg_advisory_xact_lock_shared(hashtextextended('headwater.queue ' || of_queue, 0));
    end loop;
    if found then
        update headwater.job as job
           set epoch = job.epoch + 1
          from unnest(ids, epochs) as given (id, epoch), headwater.job_running as running
         where job.id = given.id
           and job.id = any(ids)
           and job.epoch = given.epoch
           and job.lease_until <= clock_timestamp()
           and running.job_id = job.id
           and running.job_id = any(ids);
    end if;
    return query
    update headwater.job as job
       set lease_until = clock_timestamp() + lease
      from unnest(ids, epochs) as given (id, epoch)
     where job.id = given.id
       and job.id = any(ids)
       and job.epoch = given.epoch
       and job.lease_until is not null
    returning job.id, job.is_cancelled;
end
$$;

-- Cancel jobs. One that is scheduled is finished at once; who has one that is claimed hears of it. Returns what became of each
-- that was there.
create function headwater.queue_cancel_1(ids bigint[]) returns table (id bigint, was_claimed boolean)
    language plpgsql
    set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
    with locked as (
        select job.id, job.lease_until > clock_timestamp() as is_held
          from headwater.job as job
         where job.id = any(ids)
         order by job.id
           for update
    ), gone as (
        delete from headwater.job as job
         using locked
         where job.id = locked.id
           and locked.is_held is not true
        returning job.*
    ), freed as (
        delete from headwater.job_running as running
         using gone
         where running.job_id = gone.id
    ), kept as (
        insert into headwater.job_done (
            id, queue, kind, payload, priority, run_at, key, created_at, attempt, claimed_at, worker, outcome, finished_at
        )
        select gone.id, gone.queue, gone.kind, gone.payload, gone.priority, gone.run_at, gone.key, gone.created_at, gone.attempt,
               gone.claimed_at, gone.worker, 'cancelled', clock_timestamp()
          from gone
    ), told as (
        update headwater.job as job
           -- Another one may take its place from now on.
           set is_cancelled = true, unique_key = null
          from locked
         where job.id = locked.id
           and locked.is_held
        returning job.id, pg_notify('headwater_queue_cancel', job.id::text)
    )
    select gone.id, false from gone
     union all
    select told.id, true from told;
end
$$;

-- Schedule jobs again that were given up, as new ones with their old ids. Of those that share a unique key the last is, unless
-- one that has it is there, or is made by another transaction, whose end is waited for. Returns those that are.
create function headwater.queue_retry_1(ids bigint[]) returns setof bigint
    language plpgsql
as $$
begin
    return query
    with wanted as (
        select dead.*
          from headwater.job_dead as dead
         where dead.id = any(ids)
         order by dead.id desc
           for update
    ), made as (
        insert into headwater.job (
            id, queue, kind, payload, priority, key, unique_key, trace, created_at, epoch, error, error_class
        )
        overriding system value
        select wanted.id, wanted.queue, wanted.kind, wanted.payload, wanted.priority, wanted.key, wanted.unique_key,
               wanted.trace, wanted.created_at, wanted.epoch, wanted.error, wanted.error_class
          from wanted
            on conflict (kind, unique_key) where unique_key is not null do nothing
        returning job.id, job.queue
    ), gone as (
        delete from headwater.job_dead as dead
         using made
         where dead.id = made.id
    ), rung as (
        select pg_notify('headwater_queue', each.queue) from (select distinct made.queue from made) as each
    )
    select made.id from made where (select count(*) from rung) >= 0;
end
$$;

-- Note that a periodic job is enqueued for a time; whether it was not yet, for that time or a later one.
create function headwater.queue_fire_1(of_name text, of_expression text, for_time timestamptz) returns boolean
    language plpgsql
as $$
begin
    insert into headwater.job_cron (name, expression, fired_at)
    values (of_name, of_expression, for_time)
        on conflict (name) do update
       set fired_at = excluded.fired_at, expression = excluded.expression
     where job_cron.fired_at < excluded.fired_at;
    return found;
end
$$;

-- Days of finished jobs: those of the next week are made, and those that ended before a time are dropped. With the rights of
-- the owner, since workers may not make tables. Returns how many were dropped.
create function headwater.queue_keep_days_1(kept interval) returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    day date;
    dropped integer := 0;
    one record;
begin
    if kept < interval '0' then
        raise exception 'finished jobs are kept for a time that is not negative, and not for %', kept using errcode = 'HW005';
    end if;
    if not pg_try_advisory_xact_lock(hashtextextended('headwater.queue days', 0)) then
        return 0;
    end if;
    -- In UTC, whatever the session's zone is.
    for day in
        select ((now() at time zone 'UTC')::date + given)::date from generate_series(0, 7) as given
    loop
        if to_regclass(format('headwater.job_done_%s', to_char(day, 'YYYYMMDD'))) is null and not exists (
            select
              from headwater.job_done_rest as rest
             where rest.finished_at >= day::timestamp at time zone 'UTC'
               and rest.finished_at < (day + 1)::timestamp at time zone 'UTC'
        ) then
            execute format(
                'create table headwater.job_done_%s partition of headwater.job_done for values from (%L) to (%L)',
                to_char(day, 'YYYYMMDD'), day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC'
            );
        end if;
    end loop;
    for one in
        select class.relname
          from pg_inherits as child
          join pg_class as class on class.oid = child.inhrelid
         where child.inhparent = 'headwater.job_done'::regclass
           and class.relname ~ '^job_done_[0-9]{8}$'
           and (to_date(right(class.relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC' <= now() - kept
    loop
        execute format('drop table headwater.%I', one.relname);
        dropped := dropped + 1;
    end loop;
    return dropped;
end
$$;

-- What is as old and in no day: some of it, whether that was all. Apart from the days, whose making and dropping keeps others
-- waiting until the transaction ends.
create function headwater.queue_forget_1(kept interval, most integer default 10000) returns boolean
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    gone integer;
    rest integer;
begin
    delete from headwater.job_done_rest
     where ctid = any(array(select ctid from headwater.job_done_rest where finished_at < now() - kept limit most));
    get diagnostics rest = row_count;
    -- The keys of jobs that are not done, whenever that will be, are still asked for.
    delete from headwater.job_idempotency as known
     where (known.kind, known.key) in (
           select old.kind, old.key
             from headwater.job_idempotency as old
            where old.created_at < now() - greatest(kept, interval '1 day')
              and not exists (select from headwater.job where job.id = old.job_id)
              and not exists (select from headwater.job_dead where job_dead.id = old.job_id)
            limit most
           );
    get diagnostics gone = row_count;
    -- What has filled up since is as good as what is not there; keys come and go.
    delete from headwater.queue_bucket as bucket
     where bucket.filled_at < now() - interval '1 day'
       and not exists (
           select
             from headwater.queue
            where name = bucket.queue
              and bucket.filled_at >= now() - greatest(rate_per, rate_per_key_per)
       );
    return greatest(gone, rest) < most;
end
$$;

-- They drop what was done; only whoever is granted it may have that.
revoke execute on function headwater.queue_keep_days_1(interval), headwater.queue_forget_1(interval, integer) from public;

select headwater.queue_keep_days_1(interval '1000 years');
