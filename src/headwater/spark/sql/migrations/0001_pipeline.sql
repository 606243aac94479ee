-- Pipelines and their dead letters, in the state database. Nothing of an earlier release uses these tables.
create table headwater.pipeline (
    name text primary key,
    phase text not null,
    slot text not null,
    system_identifier text,
    publication text,
    owns_publication boolean not null default false,
    paused_at timestamptz,
    commit_lsn pg_lsn,
    ordinal integer,
    committed_at timestamptz,
    started_at timestamptz not null,
    updated_at timestamptz not null,
    error text,
    report jsonb not null default '{}',
    -- A slot has one reader: a second pipeline that names it is refused.
    unique (system_identifier, slot)
);

comment on table headwater.pipeline is 'What each pipeline last said of itself; position is exclusive: all before it is delivered.';
comment on column headwater.pipeline.system_identifier is 'The server that has the slot; as long as the row is there, no other pipeline may read that slot.';
comment on column headwater.pipeline.owns_publication is 'Whether the pipeline has made its publication, so that it goes with it.';
comment on column headwater.pipeline.paused_at is 'Since when the pipeline is not to run; set and cleared by users, and looked at by its run.';

-- json and not jsonb: a letter gives back what it got, numbers and all.
create table headwater.dead_letter (
    id bigint generated always as identity primary key,
    pipeline text not null,
    sink text not null,
    event_id text not null,
    schema_name text not null,
    table_name text not null,
    op text not null,
    commit_lsn pg_lsn not null,
    ordinal integer not null,
    xid bigint not null,
    committed_at timestamptz not null,
    key json,
    new_key json,
    reason text not null,
    relation bytea,
    message bytea,
    envelope json,
    own_types json not null default '[]',
    state text not null default 'open' check (state in ('open', 'superseded', 'replayed')),
    created_at timestamptz not null default now(),
    unique (pipeline, sink, event_id),
    check ((message is null) = (relation is null) and (message is null) <> (envelope is null))
);

create index dead_letter_open on headwater.dead_letter (pipeline, sink, schema_name, table_name) where state = 'open';

comment on table headwater.dead_letter is 'Changes that a sink could not take, each as the server sent it, or after a transform as its envelope, with the reason.';
