-- The tables of pipelines, in the state database. Nothing of an earlier release uses these tables.
create table headwater.pipeline_table (
    pipeline text not null,
    schema_name text not null,
    table_name text not null,
    state text not null default 'wanted' check (state in ('wanted', 'streaming', 'left')),
    is_added boolean not null default false,
    reason text not null,
    request bigint not null default 1,
    requested_at timestamptz not null default now(),
    retry_at timestamptz not null default now(),
    error text,
    attempt text,
    pieces_done integer not null default 0,
    pieces_total integer not null default 0,
    rows_estimate bigint not null default 0,
    snapshot text,
    until_lsn pg_lsn,
    loaded_at timestamptz,
    table_oid oid,
    primary key (pipeline, schema_name, table_name)
);

comment on table headwater.pipeline_table is 'The tables of each pipeline: wanted are to be read as a whole, streaming only by their changes, left no more.';
comment on column headwater.pipeline_table.request is 'Counts what was asked for, so that a request is not taken for done by a reading that began before it.';

create table headwater.pipeline_slot (
    pipeline text primary key,
    slot text not null,
    generation text not null,
    system_identifier text not null,
    since pg_lsn,
    confirmed pg_lsn
);

comment on table headwater.pipeline_slot is 'The slot of each pipeline: a generation for each time that it was made, and how far it was confirmed; nobody else may move it.';

create function headwater.ask_for_table(pipeline text, name text, new_state text, added boolean, why text) returns void
    language plpgsql
    as $$
declare
    parts text[] := parse_ident(name);
begin
    if array_length(parts, 1) is distinct from 2 then
        raise exception 'table % is to be named with its schema', name using hint = 'Write it as schema.table.';
    end if;
    insert into headwater.pipeline_table as known (pipeline, schema_name, table_name, state, is_added, reason)
    values (ask_for_table.pipeline, parts[1], parts[2], new_state, added, why)
    on conflict on constraint pipeline_table_pkey do update
       set state = new_state,
           is_added = known.is_added or added,
           reason = why,
           request = known.request + 1,
           requested_at = now(),
           retry_at = now(),
           error = null,
           snapshot = case when new_state <> 'left' then known.snapshot end,
           until_lsn = case when new_state <> 'left' then known.until_lsn end;
end
$$;

create function headwater.add_table(pipeline text, name text) returns void
    language sql
    as $$ select headwater.ask_for_table(pipeline, name, 'wanted', true, 'added') $$;

create function headwater.remove_table(pipeline text, name text) returns void
    language sql
    as $$ select headwater.ask_for_table(pipeline, name, 'left', false, 'removed') $$;

create function headwater.request_load(pipeline text, schema_name text, table_name text, why text) returns boolean
    language sql
    as $$
update headwater.pipeline_table as known
   set state = 'wanted',
       reason = why,
       request = known.request + 1,
       requested_at = now(),
       retry_at = now(),
       error = null
 where known.pipeline = request_load.pipeline
   and known.schema_name = request_load.schema_name
   and known.table_name = request_load.table_name
   and known.state <> 'left'
returning true;
$$;

create function headwater.snapshot_table(pipeline text, name text) returns void
    language plpgsql
    as $$
declare
    parts text[] := parse_ident(name);
begin
    if headwater.request_load(pipeline, parts[1], parts[2], 'asked for') is null then
        raise exception 'pipeline % has no table %', pipeline, name
            using hint = 'Name it as schema.table, or add it with headwater.add_table.';
    end if;
end
$$;

comment on function headwater.add_table is 'Adds a table, named as schema.table, to a pipeline: it is published, read as a whole, and followed.';
comment on function headwater.remove_table is 'Takes a table, named as schema.table, out of a pipeline.';
comment on function headwater.snapshot_table is 'Has a pipeline read a table, named as schema.table, as a whole again.';
