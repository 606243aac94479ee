-- name: wal_position
-- Where the server's WAL ends now; on a standby, where it has been replayed to.
select case
           when pg_catalog.pg_is_in_recovery() then null
           else pg_catalog.pg_current_wal_insert_lsn()
       end as position;

-- name: emit_heartbeat
-- A message in the WAL that needs no table and no publication; every reader of every slot of the database gets it.
select pg_catalog.pg_logical_emit_message(true, %(prefix)s, '') as position;
