-- name: take_checkpoint
-- The checkpoint of a pipeline, which from now on is this run's alone to move.
insert into headwater.outbox_checkpoint as checkpoint (pipeline, table_name, epoch)
values (%(pipeline)s, %(table)s, 1)
    on conflict (pipeline) do update
   set epoch = checkpoint.epoch + 1
returning epoch, table_name;

-- name: find_checkpoints
-- Those of all pipelines, or of one.
select checkpoint.pipeline,
       checkpoint.table_name,
       checkpoint.epoch,
       checkpoint.generation,
       checkpoint.phase,
       checkpoint.system_identifier,
       checkpoint.timeline,
       checkpoint.snapshot::text as snapshot,
       checkpoint.lsn,
       checkpoint.newest_at,
       checkpoint.recovery_snapshot::text as recovery_snapshot,
       checkpoint.recovery_lsn,
       checkpoint.recovers_all,
       checkpoint.recovered_at,
       checkpoint.recovered_id,
       checkpoint.recovered,
       checkpoint.recovered_before,
       checkpoint.saved_at,
       (
           select coalesce(sum(cardinality(delivered.xids)), 0)::bigint
             from headwater.outbox_delivered as delivered
            where delivered.pipeline = checkpoint.pipeline
       ) as delivered
  from headwater.outbox_checkpoint as checkpoint
 where %(pipeline)s::text is null or checkpoint.pipeline = %(pipeline)s
 order by checkpoint.pipeline;

-- name: list_delivered
-- The transactions that were delivered since the snapshot of the checkpoint was taken.
select distinct xid.xid::text::bigint as xid
  from headwater.outbox_delivered as delivered
 cross join lateral unnest(delivered.xids) as xid (xid)
 where delivered.pipeline = %(pipeline)s
 order by 1;

-- name: begin_recovery
-- From now on the table is read, up to what a snapshot sees. What was known of another server, or of a history that this
-- one does not share, is worth nothing (`keeps` is false): then everything is delivered again. What a reading that was not
-- finished has delivered stays so.
update headwater.outbox_checkpoint
   set generation = %(generation)s,
       phase = 'recovering',
       system_identifier = %(system_identifier)s,
       timeline = case when %(keeps)s then timeline else %(timeline)s end,
       recovery_timeline = %(timeline)s,
       recovers_all = %(recovers_all)s,
       snapshot = case when %(keeps)s then snapshot end,
       lsn = case when %(keeps)s then lsn end,
       newest_at = case when %(keeps)s then newest_at end,
       recovery_snapshot = %(snapshot)s::pg_snapshot,
       recovery_lsn = %(lsn)s::pg_lsn,
       recovered_before = case
           when not %(keeps)s then '[]'
           when phase = 'recovering' and recovered_at is not null and not recovers_all
           then recovered_before || jsonb_build_array(
                    jsonb_build_object('snapshot', recovery_snapshot::text, 'at', recovered_at, 'id', recovered_id)
                )
           else recovered_before
       end,
       recovered_at = null,
       recovered_id = null,
       recovered = 0,
       saved_at = now()
 where pipeline = %(pipeline)s;

-- name: hold_checkpoint
-- The row, if it is still this run's to move, until the transaction ends. What the others below change is of one slot: what
-- is told of one that was lost, or once more after a crash, changes nothing.
select checkpoint.epoch
  from headwater.outbox_checkpoint as checkpoint
 where checkpoint.pipeline = %(pipeline)s
   and checkpoint.epoch = %(epoch)s
   for update;

-- name: save_recovered
-- A part of the table has been delivered.
update headwater.outbox_checkpoint
   set recovered_at = %(at)s,
       recovered_id = %(id)s,
       recovered = recovered + %(rows)s,
       saved_at = now()
 where pipeline = %(pipeline)s
   and generation = %(generation)s
   and phase = 'recovering'
   and (recovered_at, recovered_id) is distinct from (%(at)s, %(id)s);

-- name: end_recovery
-- All that the snapshot of the recovery sees is delivered, so it is the checkpoint now; what comes next is streamed.
update headwater.outbox_checkpoint
   set phase = 'streaming',
       snapshot = recovery_snapshot,
       lsn = recovery_lsn,
       timeline = recovery_timeline,
       recovered_before = '[]',
       newest_at = greatest(newest_at, %(newest_at)s),
       saved_at = now()
 where pipeline = %(pipeline)s
   and generation = %(generation)s
   and phase = 'recovering';

-- name: forget_delivered
delete from headwater.outbox_delivered where pipeline = %(pipeline)s;

-- name: save_delivered
-- Transactions whose messages the sinks have made durable.
insert into headwater.outbox_delivered (pipeline, xids)
select checkpoint.pipeline, %(xids)s::text[]::xid8[]
  from headwater.outbox_checkpoint as checkpoint
 where checkpoint.pipeline = %(pipeline)s
   and checkpoint.generation = %(generation)s;

-- name: save_newest
-- For an outbox without transaction ids; it never goes back.
update headwater.outbox_checkpoint
   set newest_at = greatest(newest_at, %(newest_at)s),
       saved_at = now()
 where pipeline = %(pipeline)s
   and generation = %(generation)s;

-- name: look_around
-- What has committed by now, for everybody to see. Where the WAL ends has to be asked for afterwards.
select pg_catalog.pg_current_snapshot()::text as snapshot;

-- name: wal_end
select pg_catalog.pg_current_wal_insert_lsn() as position;

-- name: save_snapshot
-- All that a snapshot sees is delivered. A checkpoint never goes back.
update headwater.outbox_checkpoint
   set snapshot = %(snapshot)s::pg_snapshot,
       lsn = %(lsn)s::pg_lsn,
       timeline = %(timeline)s,
       saved_at = now()
 where pipeline = %(pipeline)s
   and generation = %(generation)s
   and phase = 'streaming'
   and (lsn is null or lsn <= %(lsn)s::pg_lsn);

-- name: forget_seen
-- What the snapshot of the checkpoint tells by itself.
delete from headwater.outbox_delivered as delivered
 using headwater.outbox_checkpoint as checkpoint
 where delivered.pipeline = %(pipeline)s
   and checkpoint.pipeline = %(pipeline)s
   and not exists (
           select
             from unnest(delivered.xids) as xid (xid)
            where not pg_catalog.pg_visible_in_snapshot(xid.xid, checkpoint.snapshot)
       );

-- name: reset_checkpoint
-- Everything in the table is delivered again. The row stays: what is not delivered must not be dropped.
update headwater.outbox_checkpoint
   set epoch = epoch + 1,
       generation = '',
       phase = 'new',
       snapshot = null,
       lsn = null,
       newest_at = null,
       recovered_at = null,
       recovered_id = null,
       recovered = 0,
       recovered_before = '[]',
       saved_at = now()
 where pipeline = %(pipeline)s;

-- name: forget_checkpoint
-- Nobody delivers by it any more.
delete from headwater.outbox_checkpoint where pipeline = %(pipeline)s;

-- name: commit_locally
set synchronous_commit = local;
