-- name: list_slots
-- All slots of the server. Columns that came with a later version are read through JSON, and are null before it. Version 17
-- brought the reason of an invalidation; before, a slot whose WAL is gone has no restart_lsn, and one with a conflict has.
select slot.slot_name::text as name,
       slot.plugin::text as plugin,
       slot.database::text as database,
       slot.temporary,
       slot.active,
       slot.active_pid,
       slot.restart_lsn,
       slot.confirmed_flush_lsn,
       slot.wal_status,
       slot.safe_wal_size,
       pg_catalog.pg_wal_lsn_diff(wal.last, slot.restart_lsn)::bigint as retained_bytes,
       pg_catalog.pg_wal_lsn_diff(wal.last, slot.confirmed_flush_lsn)::bigint as lag_bytes,
       slot.two_phase,
       coalesce((later.fields ->> 'failover')::boolean, false) as failover,
       coalesce((later.fields ->> 'synced')::boolean, false) as synced,
       case
           when later.fields ->> 'invalidation_reason' is not null then later.fields ->> 'invalidation_reason'
           when slot.wal_status = 'lost' and slot.restart_lsn is null then 'wal_removed'
           when slot.wal_status = 'lost' then 'conflict with recovery'
       end as invalidation_reason
  from pg_catalog.pg_replication_slots as slot
 cross join lateral (select pg_catalog.to_jsonb(slot)) as later (fields)
 cross join (
      select case
                 when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
                 else pg_catalog.pg_current_wal_lsn()
             end
  ) as wal (last)
 order by slot.slot_name;

-- name: drop_slot
-- Fails while somebody reads the slot.
select pg_catalog.pg_drop_replication_slot(%(name)s) is null as dropped;
