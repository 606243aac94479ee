-- name: empty_ours
truncate headwater.job, headwater.job_done, headwater.job_dead;

-- name: count_ours
-- Jobs that are not known to be done.
select count(*)
  from headwater.job;

-- name: write_history
-- Jobs that were done today, so that they are where those of the run will be.
insert into headwater.job_done (
    id, queue, kind, payload, priority, run_at, created_at, attempt, claimed_at, worker, outcome, finished_at
)
select -given, 'emails', 'send-email', %(payload)s::jsonb, 0, now(), now(), 1, now(), 'a worker of yesterday', 'done', now()
  from generate_series(1, %(rows)s) as given;

-- name: count_done
select count(*)
  from headwater.job_done;

-- name: read_size
-- Of the table of jobs that are not finished, with its indexes.
select pg_total_relation_size('headwater.job')::float8;

-- name: empty_pgqueuer
truncate pgqueuer, pgqueuer_log, pgqueuer_statistics;

-- name: count_pgqueuer
select count(*)
  from pgqueuer;

-- name: empty_procrastinate
truncate procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers, procrastinate_workers;

-- name: count_procrastinate
select count(*)
  from procrastinate_jobs
 where status in ('todo', 'doing');

-- name: create_pgmq
select pgmq.create('jobs');

-- name: empty_pgmq
truncate pgmq.q_jobs, pgmq.a_jobs;

-- name: count_pgmq
select count(*)
  from pgmq.q_jobs;

-- name: read_pgmq
-- Messages that nobody else reads for the next 30 seconds, which is the default of the Python package.
select msg_id, message
  from pgmq.read(queue_name => 'jobs', vt => 30, qty => %(batch)s::integer);

-- name: delete_pgmq
select pgmq.delete(queue_name => 'jobs', msg_ids => %(ids)b::bigint[]);

-- name: archive_pgmq
select pgmq.archive(queue_name => 'jobs', msg_ids => %(ids)b::bigint[]);

-- name: settle
-- So that all arms begin with statistics, and no vacuum falls into one arm and not the other.
vacuum (analyze);

-- name: create_reference
-- As the original has it at its last commit: no index but the primary key.
do $$
begin
    create type email_status as enum ('scheduled', 'claimed', 'sent', 'error');
exception when duplicate_object then
    null;
end
$$;

create table if not exists email_messages (
    id bigserial primary key,
    subject text,
    to_ text[] not null,
    cc text[] not null,
    bcc text[] not null,
    body text,
    status email_status,
    error text,
    created_at timestamptz not null,
    updated_at timestamptz
);

truncate email_messages;

-- name: insert_emails
-- Many rows at once, each with parameters of its own.
insert into email_messages (subject, to_, cc, bcc, body, status, created_at)
values {rows}
returning id;

-- name: notify_emails
select pg_notify('email_messages', %(payload)s);

-- name: listen_emails
listen email_messages;

-- name: claim_email
with ids as (
    select id
      from email_messages
     where id = %(id)s
       and status = 'scheduled'
       for update skip locked
)
update email_messages as message
   set status = 'claimed',
       updated_at = %(now)s
  from ids
 where message.id = ids.id
returning message.id, subject, to_, cc, bcc, body;

-- name: claim_emails
-- The last step of the original: all ids of a notification at once.
with ids as (
    select id
      from email_messages
     where id = any(%(ids)b::bigint[])
       and status = 'scheduled'
       for update skip locked
)
update email_messages as message
   set status = 'claimed',
       updated_at = %(now)s
  from ids
 where message.id = ids.id
returning message.id, subject, to_, cc, bcc, body;

-- name: mark_email
with ids as (
    select id
      from email_messages
     where id = %(id)s
       and status = 'claimed'
       for update skip locked
)
update email_messages as message
   set status = 'sent',
       updated_at = %(now)s
  from ids
 where message.id = ids.id;

-- name: count_emails
-- Messages that are not known to be sent.
select count(*)
  from email_messages
 where status in ('scheduled', 'claimed');

-- name: trivial
select 1;

-- name: read_wal
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8;

-- name: count_transactions
select sum(xact_commit + xact_rollback)::float8
  from pg_stat_database
 where datname = current_database();

-- name: count_backends
select count(*)
  from pg_stat_activity
 where application_name like %(application_name)s
   and pid <> pg_backend_pid();

-- name: hold
-- The first statement of a transaction that is held open, which takes its snapshot.
select pg_current_snapshot()::text;
