-- name: lock_layout
-- Of several tasks that meet a table in its new shape, one alters it, and the others find it done.
select pg_catalog.pg_advisory_xact_lock(%(number)s);

-- name: list_layouts
-- What tables looked like when the target last followed them.
select layout.schema_name as schema,
       layout.table_name as "table",
       layout.layout::text as layout,
       layout.commit_lsn,
       layout.ordinal
  from unnest(%(schemas)s::text[], %(tables)s::text[]) as wanted (schema_name, table_name)
  join headwater.sink_layout as layout
    on layout.pipeline = %(pipeline)s
   and layout.sink = %(sink)s
   and layout.schema_name = wanted.schema_name
   and layout.table_name = wanted.table_name;

-- name: save_layout
-- The target looks like this from a position on.
insert into headwater.sink_layout as kept (
       pipeline, sink, schema_name, table_name, layout, commit_lsn, ordinal, updated_at
)
values (
       %(pipeline)s, %(sink)s, %(schema)s, %(table)s, %(layout)s::jsonb, %(commit_lsn)s::pg_lsn, %(ordinal)s, now()
)
    on conflict (pipeline, sink, schema_name, table_name) do update
   set layout = excluded.layout,
       commit_lsn = excluded.commit_lsn,
       ordinal = excluded.ordinal,
       updated_at = excluded.updated_at;

-- name: forget_layouts
-- Tables that are not followed for a while are not known to be right by what they looked like before.
delete from headwater.sink_layout
 where pipeline = %(pipeline)s and sink = %(sink)s;

-- name: name_type
-- A type that every server has, by its number.
select pg_catalog.format_type(%(type_oid)s::oid, %(typmod)s);

-- name: list_own_keys
-- Indexes of a table that this sink has made, by the beginning of their names.
select class.relname::text as name,
       array_agg(attribute.attname::text order by part.place) as columns
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indexrelid
 cross join lateral unnest(index.indkey) with ordinality as part (attnum, place)
  join pg_catalog.pg_attribute as attribute on attribute.attrelid = index.indrelid and attribute.attnum = part.attnum
 where index.indrelid = %(table)s::regclass
   and starts_with(class.relname, %(prefix)s)
 group by class.relname
 order by class.relname;

-- name: add_column
-- As at the source; old rows get NULL.
alter table {table} add column {column} {type};

-- name: add_filled_column
-- As at the source, with the value that old rows have there. Nothing is rewritten for a constant.
alter table {table} add column {column} {type} default {value}::{type};

-- name: drop_default
-- Rows say all that they have.
alter table {table} alter column {column} drop default;

-- name: drop_column
-- As at the source.
alter table {table} drop column {column};

-- name: rename_column
-- As at the source.
alter table {table} rename column {column} to {name};

-- name: widen_column
-- A type that takes all values of the old one as they are.
alter table {table} alter column {column} type {type};

-- name: retype_column
-- Values go over as they are written.
alter table {table} alter column {column} type {type} using {column}::text::{type};

-- name: clear_column
-- Values that are none of the new type go; the table is read as a whole again.
alter table {table} alter column {column} type {type} using null::{type};

-- name: drop_not_null
alter table {table} alter column {column} drop not null;

-- name: add_primary_key
alter table {table} add primary key ({columns});

-- name: drop_constraint
alter table {table} drop constraint {name};

-- name: create_identity
-- By which the source names rows from now on.
create unique index {name} on {table} ({columns});

-- name: drop_identity
drop index {name};
