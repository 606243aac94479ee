-- name: begin_load
-- An attempt reads these tables as a whole.
insert into headwater.sink_load (pipeline, sink, attempt, schema_name, table_name)
select %(pipeline)s, %(sink)s, %(attempt)s, wanted.schema_name, wanted.table_name
  from unnest(%(schemas)s::text[], %(tables)s::text[]) as wanted (schema_name, table_name)
    on conflict (pipeline, sink, attempt, schema_name, table_name) do nothing;

-- name: list_dead_attempts
-- Other attempts at any of these tables: one that is begun anew is not gone on with.
select distinct load.attempt
  from unnest(%(schemas)s::text[], %(tables)s::text[]) as wanted (schema_name, table_name)
  join headwater.sink_load as load
    on load.pipeline = %(pipeline)s
   and load.sink = %(sink)s
   and load.attempt <> %(attempt)s
   and load.schema_name = wanted.schema_name
   and load.table_name = wanted.table_name;

-- name: list_attempts
-- What is not swapped in yet.
select distinct load.attempt
  from headwater.sink_load as load
 where load.pipeline = %(pipeline)s and load.sink = %(sink)s;

-- name: list_loads
-- The tables of an attempt, and where their rows are.
select load.schema_name as schema,
       load.table_name as "table",
       load.aside,
       load.columns,
       load.identity
  from headwater.sink_load as load
 where load.pipeline = %(pipeline)s and load.sink = %(sink)s and load.attempt = %(attempt)s
 order by load.schema_name, load.table_name;

-- name: save_aside
-- Where the rows of a table are, and which columns they have; rows that went through a transform may differ in these.
insert into headwater.sink_load as kept (pipeline, sink, attempt, schema_name, table_name, aside, columns, identity)
values (
       %(pipeline)s, %(sink)s, %(attempt)s, %(schema)s, %(table)s, %(aside)s, %(columns)s::text[], %(identity)s::text[]
)
    on conflict (pipeline, sink, attempt, schema_name, table_name) do update
   set aside = excluded.aside,
       columns = kept.columns || array(
           select added.name from unnest(excluded.columns) as added (name) where added.name <> all(kept.columns)
       ),
       identity = coalesce(kept.identity, excluded.identity);

-- name: forget_attempt
-- What was known of an attempt, with the pieces of it.
with pieces as (
    delete from headwater.sink_piece
     where pipeline = %(pipeline)s and sink = %(sink)s and attempt = %(attempt)s
)
delete from headwater.sink_load
 where pipeline = %(pipeline)s and sink = %(sink)s and attempt = %(attempt)s;

-- name: find_piece
-- What a piece was read from, if it is loaded.
select piece.system_identifier, piece.timeline, piece.until, piece.read_at
  from headwater.sink_piece as piece
 where piece.pipeline = %(pipeline)s
   and piece.sink = %(sink)s
   and piece.attempt = %(attempt)s
   and piece.piece = %(piece)s
   and piece.part = %(part)s;

-- name: find_any_piece
-- What an attempt reads from.
select piece.system_identifier, piece.timeline, piece.until, piece.read_at
  from headwater.sink_piece as piece
 where piece.pipeline = %(pipeline)s and piece.sink = %(sink)s and piece.attempt = %(attempt)s
 limit 1;

-- name: save_piece
-- A piece is loaded.
insert into headwater.sink_piece (
       pipeline, sink, attempt, piece, part, system_identifier, timeline, until, read_at
)
values (
       %(pipeline)s, %(sink)s, %(attempt)s, %(piece)s, %(part)s, %(system_identifier)s, %(timeline)s, %(until)s,
       %(read_at)s
);

-- name: replace_positions
-- Tables that were swapped in are at one position as a whole, whatever they were at, and of whichever server.
with gone as (
    delete from headwater.sink_position as position
     using unnest(%(schemas)s::text[], %(tables)s::text[]) as swapped (schema_name, table_name)
     where position.pipeline = %(pipeline)s
       and position.sink = %(sink)s
       and position.schema_name = swapped.schema_name
       and position.table_name = swapped.table_name
       and (position.lanes, position.lane) <> (1, 0)
)
insert into headwater.sink_position as kept (
       pipeline, sink, schema_name, table_name, lanes, lane, commit_lsn, ordinal, system_identifier, timeline,
       attempt, updated_at
)
select %(pipeline)s, %(sink)s, swapped.schema_name, swapped.table_name, 1, 0, %(commit_lsn)s::pg_lsn, %(ordinal)s,
       %(system_identifier)s, %(timeline)s, %(attempt)s, now()
  from unnest(%(schemas)s::text[], %(tables)s::text[]) as swapped (schema_name, table_name)
    on conflict (pipeline, sink, schema_name, table_name, lanes, lane) do update
   set commit_lsn = excluded.commit_lsn,
       ordinal = excluded.ordinal,
       system_identifier = excluded.system_identifier,
       timeline = excluded.timeline,
       attempt = excluded.attempt,
       updated_at = excluded.updated_at;

-- name: create_aside
-- Where rows of a whole table wait until all of them are there. It is logged, as its pieces are said to be loaded.
create table if not exists {aside} ({columns}) with (autovacuum_enabled = false);

-- name: copy_aside
-- Rows in the text form of COPY.
copy {aside} ({columns}) from stdin;

-- name: drop_aside
-- The rows are swapped in, or their attempt has died.
drop table if exists {aside};

-- name: analyze_aside
-- Nobody else does, and a swap of millions of rows needs the right plan.
analyze {aside};

-- name: lock_target
-- Nobody else writes to a table while it is compared with what is to be in it; it can be read.
lock table {target} in share row exclusive mode;

-- name: has_rows
-- Whether a table holds anything.
select exists (select from {table});

-- name: empty_target
-- All rows go; not by a truncate, which others could see, and would wait for.
delete from {target};

-- name: delete_missing
-- The rows that the source does not have.
delete from {target} as target
 where not exists (select from {aside} as staged where {match});

-- name: insert_aside
-- All rows of a range, none of which the target has.
insert into {target} ({columns}) overriding system value
select {values}
  from {aside} as staged
 where {range};

-- name: merge_aside
-- Rows of a range; one that is there and equal to the last byte is not written. Equality of a type would not do: 1.0 is 1.00.
merge into {target} as target
using (select * from {aside} as staged where {range}) as staged
   on {match}
 when matched and row({old})::record operator(pg_catalog.*<>) row({values})::record then {update}
 when not matched then insert ({columns}) overriding system value values ({values});

-- name: delete_range
-- The rows of the target that those of a range will take the place of.
delete from {target} as target
 using {aside} as staged
 where {range}
   and {match};

-- name: list_tids
-- Where the rows of a range are.
select staged.ctid::text
  from {aside} as staged
 where {range}
 order by staged.ctid;

-- name: read_range
-- The rows of a range as texts, as the stream writes them.
select array[{texts}]::text[]
  from {aside} as staged
 where {range}
 order by staged.ctid;

-- name: count_pages
-- How long a table is, in pages.
select pg_catalog.pg_relation_size(%(table)s::regclass) / current_setting('block_size')::bigint;

-- name: is_replica
-- Whether foreign keys and triggers are switched off for this session.
select current_setting('session_replication_role') = 'replica';

-- name: is_plain
-- Whether one table may take the place of another without anybody seeing it: the same columns, and of the other nothing
-- that it does not have, or could not get: no more than not null and a primary key, which nobody refers to.
with pair as (
    select target.oid as target, aside.oid as aside
      from pg_catalog.pg_class as target
      join pg_catalog.pg_class as aside on aside.oid = %(aside)s::regclass
     where target.oid = %(target)s::regclass
       and target.relkind = 'r'
       and target.relpersistence = 'p'
       and target.relowner = aside.relowner
       and target.relam = aside.relam
       and target.reltablespace = aside.reltablespace
       and target.reloftype = 0
       and target.reloptions is null
       and target.relacl is null
       and aside.relacl is null
       and target.relreplident = 'd'
       and not target.relhasrules
       and not target.relhastriggers
       and not target.relhassubclass
       and not target.relispartition
       and not target.relrowsecurity
       and not target.relforcerowsecurity
),
looks as (
    select attribute.attrelid,
           array_agg(
               row(
                   attribute.attname, attribute.atttypid, attribute.atttypmod, attribute.attcollation,
                   attribute.attstorage, attribute.attcompression
               )::text
               order by attribute.attnum
           ) as columns,
           bool_or(
               attribute.atthasdef or attribute.attidentity <> '' or attribute.attgenerated <> ''
               or attribute.attinhcount > 0 or attribute.attacl is not null or attribute.attoptions is not null
               or coalesce(attribute.attstattarget, -1) >= 0
           ) as is_special
      from pg_catalog.pg_attribute as attribute
      join pair on attribute.attrelid in (pair.target, pair.aside)
     where attribute.attnum > 0
       and not attribute.attisdropped
     group by attribute.attrelid
)
select exists (
    select
      from pair
      join looks as one on one.attrelid = pair.target
      join looks as other on other.attrelid = pair.aside
     where one.columns = other.columns
       and not one.is_special
       and not exists (
           select
             from pg_catalog.pg_depend as depend
            where depend.refclassid = 'pg_catalog.pg_class'::regclass
              and depend.refobjid = pair.target
              and depend.classid not in ('pg_catalog.pg_type'::regclass, 'pg_catalog.pg_constraint'::regclass)
              and not (depend.classid = 'pg_catalog.pg_class'::regclass and depend.deptype = 'i')
       )
       and not exists (
           select
             from pg_catalog.pg_constraint as con
            where (con.conrelid = pair.target and con.contype not in ('p', 'n')) or con.confrelid = pair.target
       )
       and not exists (
           select
             from pg_catalog.pg_index as index
            where index.indrelid = pair.target
              and (
                  not index.indisprimary or not index.indimmediate or index.indnkeyatts <> index.indnatts
                  or index.indisclustered
              )
       )
       and not exists (
           select
             from pg_catalog.pg_type as type
             join pg_catalog.pg_depend as depend
               on depend.refclassid = 'pg_catalog.pg_type'::regclass and depend.refobjid in (type.oid, type.typarray)
            where type.typrelid = pair.target
              and depend.deptype <> 'i'
       )
       and not exists (
           select from pg_catalog.pg_inherits as inherit where pair.target in (inherit.inhrelid, inherit.inhparent)
       )
       and not exists (
           select
             from pg_catalog.pg_description as description
            where description.classoid = 'pg_catalog.pg_class'::regclass and description.objoid = pair.target
       )
       and not exists (
           select
             from pg_catalog.pg_seclabel as label
            where label.classoid = 'pg_catalog.pg_class'::regclass and label.objoid = pair.target
       )
);

-- name: list_names
-- The names of a table's primary key, with its columns, and, where the server keeps such, of what forbids NULL.
select con.conname::text as name,
       con.contype = 'p' as is_primary,
       array(
           select attribute.attname::text
             from unnest(con.conkey) with ordinality as part (attnum, place)
             join pg_catalog.pg_attribute as attribute
               on attribute.attrelid = con.conrelid and attribute.attnum = part.attnum
            order by part.place
       ) as columns
  from pg_catalog.pg_constraint as con
 where con.conrelid = %(table)s::regclass
   and con.contype in ('p', 'n')
 order by con.conname;

-- name: list_not_null
-- The columns that must not be null.
select attribute.attname::text
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = %(table)s::regclass
   and attribute.attnum > 0
   and attribute.attnotnull
   and not attribute.attisdropped
 order by attribute.attnum;

-- name: constrain_aside
-- What the other table has; fails if a row is against it.
alter table {aside} {actions};

-- name: drop_target
-- The empty table makes room; fails if anything depends on it.
drop table {target} restrict;

-- name: move_aside
-- The table takes the place of the other one.
alter table {aside} set schema {schema};

-- name: rename_table
-- Under the name of the one that it takes the place of.
alter table {table} rename to {name};

-- name: rename_constraint
-- As in the table that it takes the place of.
alter table {table} rename constraint {constraint} to {name};

-- name: reset_aside
-- It is an ordinary table from now on.
alter table {table} reset (autovacuum_enabled);
