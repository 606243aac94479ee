-- Epochs and positions of PostgreSQL sinks, in their target database. Nothing of an earlier release uses these tables.
create table headwater.sink_epoch (
    pipeline text not null,
    sink text not null,
    epoch bigint not null,
    taken_at timestamptz not null,
    primary key (pipeline, sink)
);

comment on table headwater.sink_epoch is 'Which run of a pipeline may write: the one that took the last epoch. Writers hold the row while they write.';

create table headwater.sink_position (
    pipeline text not null,
    sink text not null,
    schema_name text not null,
    table_name text not null,
    lanes smallint not null,
    lane smallint not null,
    commit_lsn pg_lsn not null,
    ordinal integer not null,
    system_identifier text,
    timeline integer,
    updated_at timestamptz not null,
    primary key (pipeline, sink, schema_name, table_name, lanes, lane)
) with (fillfactor = 50);

comment on table headwater.sink_position is 'How far each table is: all changes before the position are applied; those of a key lane if lanes > 1, else of the whole table.';
