-- name: set_session
-- Values read and compare as the source writes them, whatever the defaults here are; a commit is durable when it returns.
set datestyle = 'ISO';
set intervalstyle = 'iso_8601';
set timezone = 'UTC';
set extra_float_digits = 1;
set bytea_output = 'hex';
set synchronous_commit = 'on';
set statement_timeout = 0;
set row_security = off;

-- name: set_replica
-- Foreign keys and triggers have done their work at the source; what they did comes as changes of its own.
set session_replication_role = 'replica';

-- name: check_at_once
-- What a deferred constraint refuses is said at the statement, where the row is still known.
set constraints all immediate;

-- name: limit_waiting
-- A writer that hangs must not hold up a takeover for ever.
select pg_catalog.set_config('lock_timeout', %(milliseconds)s || 'ms', true);

-- name: take_epoch
-- Shut out all earlier runs; waits for what they are writing at this moment.
insert into headwater.sink_epoch as held (pipeline, sink, epoch, taken_at)
values (%(pipeline)s, %(sink)s, 1, now())
    on conflict (pipeline, sink) do update set epoch = held.epoch + 1, taken_at = now()
returning epoch;

-- name: hold_epoch
-- The last epoch, which nobody can move on until this transaction has ended. The locks keep a task that was started again
-- waiting for the first try of it, if that is still at work somewhere.
with locked as materialized (
    select pg_catalog.pg_advisory_xact_lock(wanted.number)
      from unnest(%(locks)s::bigint[]) as wanted (number)
     order by wanted.number
)
select held.epoch
  from headwater.sink_epoch as held
 where held.pipeline = %(pipeline)s
   and held.sink = %(sink)s
   and (select count(*) from locked) >= 0
   for share of held;

-- name: list_positions
-- How far some tables are, by lane.
select position.schema_name as schema,
       position.table_name as "table",
       position.lanes::int as lanes,
       position.lane::int as lane,
       position.commit_lsn,
       position.ordinal,
       position.system_identifier,
       position.timeline,
       position.attempt
  from unnest(%(schemas)s::text[], %(tables)s::text[]) as wanted (schema_name, table_name)
  join headwater.sink_position as position
    on position.pipeline = %(pipeline)s
   and position.sink = %(sink)s
   and position.schema_name = wanted.schema_name
   and position.table_name = wanted.table_name;

-- name: save_positions
-- Move positions on, never back.
insert into headwater.sink_position as kept (
       pipeline, sink, schema_name, table_name, lanes, lane, commit_lsn, ordinal, system_identifier, timeline,
       updated_at
)
select %(pipeline)s, %(sink)s, reached.schema_name, reached.table_name, reached.lanes, reached.lane,
       %(commit_lsn)s::pg_lsn, %(ordinal)s, reached.system_identifier, reached.timeline, now()
  from unnest(
           %(schemas)s::text[], %(tables)s::text[], %(lanes)s::smallint[], %(lane)s::smallint[], %(systems)s::text[],
           %(timelines)s::integer[]
       ) as reached (schema_name, table_name, lanes, lane, system_identifier, timeline)
    on conflict (pipeline, sink, schema_name, table_name, lanes, lane) do update
   set commit_lsn = excluded.commit_lsn,
       ordinal = excluded.ordinal,
       system_identifier = excluded.system_identifier,
       timeline = excluded.timeline,
       updated_at = excluded.updated_at
 where (kept.commit_lsn, kept.ordinal) < (excluded.commit_lsn, excluded.ordinal);

-- name: find_place
-- Which database of which server this is, told without any right: no two servers of a machine start in one microsecond.
select pg_catalog.pg_postmaster_start_time() as started_at,
       pg_catalog.inet_server_port() as port,
       pg_catalog.current_database()::text as database;

-- name: find_tables
-- Relations by name, and whether the current user may do with them what a merge does.
select class.oid,
       namespace.nspname::text as schema,
       class.relname::text as name,
       class.relkind::text as kind,
       pg_catalog.has_table_privilege(class.oid, 'select')
           and pg_catalog.has_table_privilege(class.oid, 'insert')
           and pg_catalog.has_table_privilege(class.oid, 'update')
           and pg_catalog.has_table_privilege(class.oid, 'delete') as can_write
  from unnest(%(schemas)s::text[], %(names)s::text[]) as wanted (schema, name)
  join pg_catalog.pg_namespace as namespace on namespace.nspname = wanted.schema
  join pg_catalog.pg_class as class on class.relnamespace = namespace.oid and class.relname = wanted.name
 where class.relkind in ('r', 'p', 'v', 'm', 'f');

-- name: list_target_columns
-- The columns of some tables, with what stands in the way of writing to them.
select attribute.attrelid as table_oid,
       attribute.attname::text as name,
       attribute.atttypid as type_oid,
       pg_catalog.format_type(attribute.atttypid, attribute.atttypmod) as type_name,
       (
           with recursive step (oid, typmod, depth) as (
               select attribute.atttypid, attribute.atttypmod, 0
                union all
               select type.typbasetype,
                      case when step.typmod = -1 then type.typtypmod else step.typmod end,
                      step.depth + 1
                 from step
                 join pg_catalog.pg_type as type on type.oid = step.oid and type.typtype = 'd'
           )
           select pg_catalog.format_type(step.oid, step.typmod)
             from step
            order by step.depth desc
            limit 1
       ) as staged_type,
       attribute.attnotnull and not attribute.atthasdef and attribute.attidentity = '' as is_required,
       attribute.attgenerated <> '' as is_generated,
       attribute.attidentity = 'a' as is_identity_always
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = any(%(tables)s::oid[])
   and attribute.attnum > 0
   and not attribute.attisdropped
 order by attribute.attrelid, attribute.attnum;

-- name: list_unique_keys
-- What tells the rows of some tables apart, the primary key first. A deferrable index does not, while it is deferred.
select index.indrelid as table_oid,
       index.indisprimary as is_primary,
       array_agg(attribute.attname::text order by part.place) as columns
  from pg_catalog.pg_index as index
 cross join lateral unnest(index.indkey) with ordinality as part (attnum, place)
  join pg_catalog.pg_attribute as attribute on attribute.attrelid = index.indrelid and attribute.attnum = part.attnum
 where index.indrelid = any(%(tables)s::oid[])
   and index.indisunique
   and index.indisvalid
   and index.indimmediate
   and index.indpred is null
   and index.indexprs is null
   and part.place <= index.indnkeyatts
 group by index.indrelid, index.indexrelid, index.indisprimary
 order by index.indrelid, index.indisprimary desc, index.indexrelid;

-- name: clear_search_path
-- From here on the names of types say their schema.
set search_path = '';

-- name: find_missing_types
-- Those of some types, by name, that this database lacks.
select wanted.name
  from unnest(%(names)s::text[]) as wanted (name)
 where pg_catalog.to_regtype(wanted.name) is null
 order by wanted.name;

-- name: create_schema
-- A schema as at the source.
create schema if not exists {schema};

-- name: create_table
-- A table as at the source, without its defaults, constraints and indexes other than the primary key.
create table if not exists {table} ({columns});

-- name: create_staging
-- Where rows wait to be merged; it lives as long as the connection, and is empty after each commit.
create temporary table {staging} ({columns}, kept smallint[], gone boolean not null) on commit delete rows;

-- name: drop_staging
-- Make room for one of another shape.
drop table if exists {staging};

-- name: copy_rows
-- Rows in the text form of COPY.
copy {table} ({columns}) from stdin;

-- name: delete_rows
-- The rows that are gone; first, since others may take over what was unique to them.
delete from {target} as target
 using {staging} as staged
 where staged.gone
   and {match};

-- name: merge_rows
-- Rows as they are now, whether they are there or not.
merge into {target} as target
using (select * from {staging} where not gone) as staged
   on {match}
 when matched then {update}
 when not matched then insert ({columns}) overriding system value values ({values});

-- name: merge_kept_rows
-- The same where some columns stay as they are: a row that is not there cannot be made of the rest.
merge into {target} as target
using (select * from {staging} where not gone) as staged
   on {match}
 when matched then {update}
 when not matched and staged.kept is null then insert ({columns}) overriding system value values ({values});

-- name: move_row
-- A row that gets another key, and keeps some columns as they are.
update {target} as target
   set {assignments}
  from {staging} as staged, {staging} as old
 where not staged.gone
   and old.gone
   and {match};

-- name: delete_equal_rows
-- Of rows without a key, as many as are gone of those that are equal in all columns, by their text.
with wanted as (
    select row({staged})::text as row_text, count(*) as number
      from {staging} as staged
     where staged.gone
     group by 1
),
found as (
    select target.tableoid, target.ctid, wanted.number,
           row_number() over (partition by wanted.row_text) as place
      from {target} as target
      join wanted on row({columns})::text = wanted.row_text
)
delete from {target} as target
 using found
 where target.tableoid = found.tableoid
   and target.ctid = found.ctid
   and found.place <= found.number;

-- name: clear_staging
-- What was merged must not be merged again with the next rows of the transaction.
truncate {staging};

-- name: truncate_table
-- All rows go.
truncate table {target};

-- name: delete_all
-- All rows go, where a foreign key or a missing right forbids a truncate.
delete from {target};
