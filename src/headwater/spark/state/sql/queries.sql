-- name: save_report
-- One row for each pipeline, written over; a run that begins sets the time of its start. A run that has not delivered yet
-- does not know the position, and leaves that of the run before it.
insert into headwater.pipeline as pipeline
       (name, phase, slot, commit_lsn, ordinal, committed_at, started_at, updated_at, error, report)
values (%(pipeline)s, %(phase)s, %(slot)s, %(commit_lsn)s::pg_lsn, %(ordinal)s::integer, %(committed_at)s::timestamptz,
        pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp(), %(error)s, %(report)s)
    on conflict (name) do update
   set phase = excluded.phase,
       slot = excluded.slot,
       commit_lsn = coalesce(excluded.commit_lsn, pipeline.commit_lsn),
       ordinal = case when excluded.commit_lsn is null then pipeline.ordinal else excluded.ordinal end,
       committed_at = coalesce(excluded.committed_at, pipeline.committed_at),
       started_at = case when excluded.phase = 'starting' then excluded.started_at else pipeline.started_at end,
       updated_at = excluded.updated_at,
       error = excluded.error,
       report = excluded.report;

-- name: fetch_report
-- The last report of a pipeline, if there is one.
select phase, slot, commit_lsn, ordinal, committed_at, started_at, updated_at, error, report, paused_at, owns_publication
  from headwater.pipeline
 where name = %(pipeline)s;

-- name: fetch_server_position
-- Up to where WAL is durable, which is as far as a slot can be confirmed; on a standby, what it has replayed.
select case
           when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
           else pg_catalog.pg_current_wal_flush_lsn()
       end as flush_lsn,
       pg_catalog.clock_timestamp() as now;

-- name: fetch_rights
-- Whether the user can make Headwater's tables, or work with those that are there.
select current_user::text as user,
       pg_catalog.current_database()::text as database,
       pg_catalog.pg_is_in_recovery() as in_recovery,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') as can_create_schema,
       found.oid is not null as has_schema,
       coalesce(pg_catalog.has_schema_privilege(found.oid, 'usage'), false) as can_use_schema,
       coalesce(pg_catalog.has_schema_privilege(found.oid, 'create'), false) as can_create_tables
  from (select max(namespace.oid) as oid
          from pg_catalog.pg_namespace as namespace
         where namespace.nspname = 'headwater') as found;

-- name: claim_slot
-- Say which slot of which server a pipeline reads, before it does; a slot that another pipeline has said so of violates the
-- table's constraint. A publication stays ours as long as it is the same one. The position is one of the slot's.
insert into headwater.pipeline as pipeline
       (name, phase, slot, system_identifier, publication, owns_publication, started_at, updated_at)
values (%(pipeline)s, 'starting', %(slot)s, %(system_identifier)s, %(publication)s, %(owns_publication)s,
        pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp())
    on conflict (name) do update
   set slot = excluded.slot,
       commit_lsn = case when pipeline.slot = excluded.slot then pipeline.commit_lsn end,
       ordinal = case when pipeline.slot = excluded.slot then pipeline.ordinal end,
       system_identifier = excluded.system_identifier,
       publication = excluded.publication,
       owns_publication = excluded.owns_publication
                       or (pipeline.owns_publication and pipeline.publication = excluded.publication);

-- name: find_claimant
-- Which pipeline reads a slot of a server, by what it said last.
select name
  from headwater.pipeline
 where system_identifier = %(system_identifier)s
   and slot = %(slot)s;

-- name: pause
-- One row, unless the pipeline never ran: since when it is not to run.
update headwater.pipeline
   set paused_at = coalesce(paused_at, pg_catalog.clock_timestamp())
 where name = %(pipeline)s
returning paused_at;

-- name: resume
-- One row, unless the pipeline never ran: since when it was paused, null if it was not.
update headwater.pipeline as pipeline
   set paused_at = null
  from headwater.pipeline as before
 where pipeline.name = %(pipeline)s
   and before.name = pipeline.name
returning before.paused_at;

-- name: is_paused
-- Asked by a run once a second.
select paused_at is not null as is_paused
  from headwater.pipeline
 where name = %(pipeline)s;

-- name: set_lease_session
-- The server notices within 20 seconds that the machine which holds a lock is gone, and lets go of the lock. Whoever holds it
-- gives up earlier. Sockets without a network ignore the first three.
set tcp_keepalives_idle = 10;
set tcp_keepalives_interval = 2;
set tcp_keepalives_count = 5;
set idle_session_timeout = 0;
set statement_timeout = '3s';

-- name: take_lease
-- Whether the pipeline is ours to run, from now until this session ends. Never waits.
select pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('headwater pipeline ' || %(pipeline)s::text, 0)) as taken;

-- name: release_lease
-- For whoever comes next; the session has no other locks of this kind.
select pg_catalog.pg_advisory_unlock_all()::text;

-- name: find_holder
-- The session that holds a pipeline: a lock of 64 bits is shown in two halves.
select lock.pid,
       coalesce(pg_catalog.host(activity.client_addr), 'this machine') as machine
  from pg_catalog.hashtextextended('headwater pipeline ' || %(pipeline)s::text, 0) as key (number)
  join pg_catalog.pg_locks as lock
    on lock.locktype = 'advisory'
   and lock.objsubid = 1
   and lock.granted
   and lock.classid = ((key.number >> 32) & 4294967295)::oid
   and lock.objid = (key.number & 4294967295)::oid
   and lock.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
  left join pg_catalog.pg_stat_activity as activity on activity.pid = lock.pid;

-- name: set_asking_session
-- Whoever asks for figures wants them soon, or not at all.
set statement_timeout = '3s';
set lock_timeout = '1s';

-- name: fetch_idle_seconds
-- For how long nobody has read a slot; null while somebody does, and before version 17, which does not know.
select extract(epoch from pg_catalog.clock_timestamp() - (pg_catalog.to_jsonb(slot) ->> 'inactive_since')::timestamptz)::float8
           as idle_seconds
  from pg_catalog.pg_replication_slots as slot
 where slot.slot_name = %(slot)s
   and not slot.active;

-- name: count_open_letters
-- The dead letters of a pipeline that wait, by sink.
select sink, count(*) as letters
  from headwater.dead_letter
 where pipeline = %(pipeline)s
   and state = 'open'
 group by sink
 order by sink;

-- name: list_loads
-- How far the tables are that are read as a whole.
select schema_name as schema,
       table_name as "table",
       state,
       pieces_done,
       pieces_total,
       rows_estimate,
       error
  from headwater.pipeline_table
 where pipeline = %(pipeline)s
 order by schema_name, table_name;

-- name: forget_pipeline
-- What a pipeline said of itself.
delete from headwater.pipeline
 where name = %(pipeline)s;

-- name: forget_tables
-- Which tables a pipeline has.
delete from headwater.pipeline_table
 where pipeline = %(pipeline)s;

-- name: forget_slot
-- Which slot a pipeline had, and how far it was confirmed.
delete from headwater.pipeline_slot
 where pipeline = %(pipeline)s;

-- name: forget_letters
-- The dead letters of a pipeline, in whatever state.
delete from headwater.dead_letter
 where pipeline = %(pipeline)s;

-- name: count_letters
-- The dead letters of a pipeline, in whatever state.
select count(*)
  from headwater.dead_letter
 where pipeline = %(pipeline)s;

-- name: count_tables
-- The tables of a pipeline.
select count(*)
  from headwater.pipeline_table
 where pipeline = %(pipeline)s;

-- name: count_positions
-- How far the tables of a sink are, in the sink's own database: one row for each lane.
select count(*)
  from headwater.sink_position
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: forget_positions
-- From here on the sink takes whatever comes.
delete from headwater.sink_position
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: count_epochs
-- Whether a run has ever taken the sink.
select count(*)
  from headwater.sink_epoch
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: forget_epoch
-- A run that still has an epoch finds no row, and so cannot write any more.
delete from headwater.sink_epoch
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: list_asides
-- Tables with rows that were being loaded into a sink.
select aside
  from headwater.sink_load
 where pipeline = %(pipeline)s
   and sink = %(sink)s
   and aside is not null
 order by aside;

-- name: drop_aside
-- Rows that were never swapped in.
drop table if exists headwater.{name};

-- name: forget_loads
-- What was being loaded into a sink.
delete from headwater.sink_load
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: forget_pieces
-- Which pieces of it were there.
delete from headwater.sink_piece
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: forget_layouts
-- What the tables of the source looked like to the sink.
delete from headwater.sink_layout
 where pipeline = %(pipeline)s
   and sink = %(sink)s;

-- name: drop_publication
-- Its tables stay as they are.
drop publication if exists {name};
