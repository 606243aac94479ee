-- Epochs, positions and tables that are being loaded of PostgreSQL sinks, in their target database. Nothing of an earlier
-- release uses these tables.
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
    attempt text,
    updated_at timestamptz not null,
    primary key (pipeline, sink, schema_name, table_name, lanes, lane)
) with (fillfactor = 50);

comment on table headwater.sink_position is 'How far each table is: all changes before the position are applied; those of a key lane if lanes > 1, else of the whole table. The rows that it began with were read by the attempt.';

create table headwater.sink_layout (
    pipeline text not null,
    sink text not null,
    schema_name text not null,
    table_name text not null,
    layout jsonb not null,
    commit_lsn pg_lsn not null,
    ordinal integer not null,
    updated_at timestamptz not null,
    primary key (pipeline, sink, schema_name, table_name)
);

comment on table headwater.sink_layout is 'What each table looked like at the source when the target last followed it, from which position on; written in the transaction that alters the target.';

create table headwater.sink_load (
    pipeline text not null,
    sink text not null,
    attempt text not null,
    schema_name text not null,
    table_name text not null,
    aside text,
    columns text[] not null default '{}',
    identity text[],
    primary key (pipeline, sink, attempt, schema_name, table_name),
    unique (aside)
);

comment on table headwater.sink_load is 'Tables that an attempt reads as a whole: where their rows are until all are there, which columns they have, and by which the source names a row.';

create table headwater.sink_piece (
    pipeline text not null,
    sink text not null,
    attempt text not null,
    piece integer not null,
    part integer not null,
    system_identifier text not null,
    timeline integer,
    until pg_lsn not null,
    read_at timestamptz not null,
    primary key (pipeline, sink, attempt, piece, part)
);

comment on table headwater.sink_piece is 'Which pieces of an attempt are loaded, written in the transaction of their rows, and what they were read from.';
