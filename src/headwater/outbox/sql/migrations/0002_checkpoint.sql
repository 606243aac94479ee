-- How far each pipeline has delivered an outbox, beside the outbox itself. Nothing of an earlier release uses these tables.
create table headwater.outbox_checkpoint (
    pipeline text primary key,
    table_name text not null,
    epoch bigint not null,
    generation text not null default '',
    phase text not null default 'new' check (phase in ('new', 'recovering', 'streaming')),
    system_identifier text not null default '',
    timeline integer not null default 0,
    snapshot pg_snapshot,
    lsn pg_lsn,
    newest_at timestamptz,
    recovery_snapshot pg_snapshot,
    recovery_lsn pg_lsn,
    recovery_timeline integer,
    recovers_all boolean not null default false,
    recovered_at text,
    recovered_id text,
    recovered bigint not null default 0,
    recovered_before jsonb not null default '[]',
    saved_at timestamptz not null default now(),
    check ((snapshot is null) = (lsn is null)),
    check (phase <> 'recovering' or (recovery_snapshot is not null and recovery_lsn is not null))
);

comment on table headwater.outbox_checkpoint is 'What of an outbox is delivered, by pipeline: all that `snapshot` sees, and the transactions in `outbox_delivered`.';
comment on column headwater.outbox_checkpoint.epoch is 'Raised by each run; only the one that raised it last may write.';
comment on column headwater.outbox_checkpoint.generation is 'Which slot, of those that had the name, the phase is about.';
comment on column headwater.outbox_checkpoint.lsn is 'Where the WAL ended after `snapshot` was taken, on `timeline`: the snapshot is worth nothing to a server that never had that.';
comment on column headwater.outbox_checkpoint.newest_at is 'For an outbox without transaction ids: rows that are older were delivered, if no clock and no transaction was slower than the skew.';
comment on column headwater.outbox_checkpoint.recovery_snapshot is 'What is read from the table after the slot was lost; what it does not see comes with the new slot.';
comment on column headwater.outbox_checkpoint.recovers_all is 'Rows have transaction ids of another server, as after a restore: all of them are read, and some may come twice.';
comment on column headwater.outbox_checkpoint.recovered_at is 'With `recovered_id`, how far that reading has come.';
comment on column headwater.outbox_checkpoint.recovered_before is 'What earlier readings had delivered when the slot was lost once more: of each, its snapshot and how far it had come.';

-- The transactions that were delivered since `snapshot` was taken, a row for each batch.
create table headwater.outbox_delivered (
    id bigint generated always as identity primary key,
    pipeline text not null references headwater.outbox_checkpoint on delete cascade,
    xids xid8[] not null
);

create index outbox_delivered_pipeline on headwater.outbox_delivered (pipeline);
