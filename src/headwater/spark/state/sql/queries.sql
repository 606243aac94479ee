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
select phase, slot, commit_lsn, ordinal, committed_at, started_at, updated_at, error, report
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
