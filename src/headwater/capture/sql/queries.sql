-- name: wal_position
-- Where the server's WAL ends now; on a standby, where it has been replayed to.
select case
           when pg_catalog.pg_is_in_recovery() then null
           else pg_catalog.pg_current_wal_insert_lsn()
       end as position;

-- name: emit_heartbeat
-- A message in the WAL that needs no table and no publication; every reader of every slot of the database gets it.
select pg_catalog.pg_logical_emit_message(true, %(prefix)s, '') as position;

-- name: commit_locally
-- Do not wait for standbys: a heartbeat has nothing to lose.
set synchronous_commit = local;

-- name: missing_publications
-- Which of the wanted publications are not there; from PostgreSQL 18 on the server itself passes over them in silence.
select wanted.name
  from unnest(%(names)s::text[]) as wanted(name)
 where not exists (select from pg_catalog.pg_publication as publication where publication.pubname = wanted.name)
 order by wanted.name;
