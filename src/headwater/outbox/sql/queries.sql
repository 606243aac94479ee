-- name: insert_message
insert into headwater.outbox_message (id, topic, type, key, payload, headers)
values (%(id)s::uuid, %(topic)s::text, %(type)s::text, %(key)s::text, %(payload)s::text::json, %(headers)s::text::json);

-- name: insert_messages
-- Many at once, in the order given, which the stream keeps. Arrays go in binary form: as text, psycopg escapes every
-- element, which takes ten times as long as all the rest.
insert into headwater.outbox_message (id, topic, type, key, payload, headers)
select given.id, given.topic, given.type, given.key, given.payload::json, given.headers::json
  from unnest(
           %(ids)b::uuid[], %(topics)b::text[], %(types)b::text[], %(keys)b::text[], %(payloads)b::text[], %(headers)b::text[]
       ) with ordinality as given (id, topic, type, key, payload, headers, place)
 order by given.place;

-- name: emit_message
-- Into the WAL alone, as part of the transaction.
select pg_catalog.pg_logical_emit_message(true, %(prefix)s::text, %(content)s::text)::text;

-- name: remember_message
-- A row if it is new. Whoever inserts the same at the same time waits here until the other transaction has ended. Names no
-- column to read, so that the right to insert is enough.
insert into headwater.inbox_message (consumer, message_id)
values (%(consumer)s::text, %(message_id)s::text)
    on conflict do nothing
returning true;

-- name: count_inbox_pages
select pg_catalog.pg_relation_size('headwater.inbox_message') / pg_catalog.current_setting('block_size')::bigint;

-- name: forget_pages
-- By ranges of pages, so that the table is read once and needs no index by time.
delete from headwater.inbox_message
 where ctid >= %(first)s::text::tid
   and ctid < %(last)s::text::tid
   and received_at < pg_catalog.now() - %(older_than)s::interval;

-- name: list_partitions
-- The partitions of the outbox but for the default one, by their bounds; one without a bound reaches as far as Python's time.
select namespace.nspname::text as schema,
       class.relname::text as name,
       coalesce(bound.lower::timestamptz, '0001-01-02 00:00:00+00') as lower,
       coalesce(bound.upper::timestamptz, '9999-12-30 00:00:00+00') as upper,
       pg_catalog.pg_total_relation_size(class.oid) as bytes
  from pg_catalog.pg_inherits as family
  join pg_catalog.pg_class as class on class.oid = family.inhrelid
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 cross join lateral (
      select substring(pg_catalog.pg_get_expr(class.relpartbound, class.oid) from 'FROM \(''([^'']+)''\)') as lower,
             substring(pg_catalog.pg_get_expr(class.relpartbound, class.oid) from 'TO \(''([^'']+)''\)') as upper
  ) as bound
 where family.inhparent = 'headwater.outbox_message'::regclass
   and pg_catalog.pg_get_expr(class.relpartbound, class.oid) <> 'DEFAULT'
 order by 3;

-- name: read_clock
select pg_catalog.clock_timestamp();

-- name: see_latest
-- First in a transaction: what was committed while it waited for a lock has to be seen, whatever the role's default is.
set transaction isolation level read committed;

-- name: lock_partitions
-- One process at a time makes partitions.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('headwater outbox partitions', 0))::text;

-- name: has_strays
-- Whether rows of a range are in the default partition, so that it cannot have a partition of its own.
select exists (
    select
      from headwater.outbox_message_default as message
     where message.created_at >= %(lower)s
       and message.created_at < %(upper)s
);

-- name: create_partition
-- Attached, not created as a partition, which would lock the outbox against all writers. Rows go to it from the commit on.
create table {partition} (like headwater.outbox_message including all) with (autovacuum_vacuum_insert_threshold = -1);
alter table headwater.outbox_message attach partition {partition} for values from ({lower}) to ({upper});

-- name: hold_partition
-- Waits for those who write to it, and keeps others from it; readers pass.
lock table only {partition} in share mode;

-- name: drop_partition
drop table {partition};

-- name: list_coverage
-- What each pipeline is known to have delivered. A checkpoint of another server, or of another history, is worth nothing:
-- there the ids of transactions stand for others.
select saved.pipeline,
       case
           when saved.system_identifier = control.system_identifier::text
            and saved.timeline
                = ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer
           then saved.snapshot::text
       end as snapshot
  from headwater.outbox_checkpoint as saved
 cross join pg_catalog.pg_control_system() as control
 where saved.table_name = 'headwater.outbox_message'
 order by saved.pipeline;

-- name: list_behind
-- The pipelines that may not have delivered all rows of a range.
with coverage as materialized (
    select given.pipeline, given.snapshot::pg_snapshot as snapshot
      from unnest(%(pipelines)s::text[], %(snapshots)s::text[]) as given (pipeline, snapshot)
)
select coverage.pipeline
  from coverage
 where exists (
           select
             from headwater.outbox_message as message
            where message.created_at >= %(lower)s
              and message.created_at < %(upper)s
              and (
                  coverage.snapshot is null
                  or not pg_catalog.pg_visible_in_snapshot(message.xid, coverage.snapshot)
              )
       )
 order by coverage.pipeline;

-- name: has_unpublished
-- Whether a range has rows that no relay has marked as published.
select exists (
    select
      from headwater.outbox_message as message
     where message.created_at >= %(lower)s
       and message.created_at < %(upper)s
       and message.status <> 'published'
);

-- name: delete_strays
-- Rows of the default partition that are old and that all pipelines have delivered, or where there are none, that a relay
-- has marked as published; some at a time.
with coverage as materialized (
    select given.snapshot::pg_snapshot as snapshot
      from unnest(%(snapshots)s::text[]) as given (snapshot)
), delivered as (
    select message.created_at, message.id
      from headwater.outbox_message_default as message
     where message.created_at < %(before)s
       and case
               when not exists (select from coverage) then message.status = 'published'
               else not exists (
                   select
                     from coverage
                    where coverage.snapshot is null
                       or not pg_catalog.pg_visible_in_snapshot(message.xid, coverage.snapshot)
               )
           end
     order by message.created_at, message.id
     limit %(limit)s
       for update skip locked
)
delete from headwater.outbox_message_default as message
 using delivered
 where message.created_at = delivered.created_at
   and message.id = delivered.id;

-- name: count_strays
-- How many rows of the default partition are older than that.
select count(*) from headwater.outbox_message_default as message where message.created_at < %(before)s;

-- name: require_role
-- Fails as the grants would if there is no such role, before anything was made for it. All roles together go by `public`.
select pg_catalog.quote_ident(%(role)s::text)::regrole::text
 where %(role)s::text <> 'public';

-- name: grant_writing
-- What an application needs to publish and to remember. It has no right to set the time or the transaction of a row, which
-- recovery rests on, nor to read.
grant usage on schema headwater to {role};
grant execute on function headwater.uuid_v7() to {role};
grant insert (id, topic, type, key, payload, headers) on headwater.outbox_message to {role};
grant insert (consumer, message_id) on headwater.inbox_message to {role};

-- name: describe_table
-- What a table is, and what the current user may do with it.
select class.oid,
       namespace.nspname::text as schema,
       class.relname::text as name,
       class.relkind::text as kind,
       class.relpersistence::text as persistence,
       class.relispartition as is_partition,
       pg_catalog.has_schema_privilege(namespace.oid, 'usage') and pg_catalog.has_table_privilege(class.oid, 'select')
           as can_select,
       class.relrowsecurity and pg_catalog.row_security_active(class.oid) as rows_hidden
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where class.oid = %(oid)s;

-- name: describe_columns
-- The columns of a table: domains by what they are made of, defaults as the server writes them.
select attribute.attname::text as name,
       pg_catalog.format_type(attribute.atttypid, attribute.atttypmod) as declared,
       base.typname::text as base,
       base.typtype::text as kind,
       attribute.attnotnull or type.typnotnull as not_null,
       attribute.attgenerated::text as generated,
       case when attribute.attgenerated = '' then pg_catalog.pg_get_expr(setting.adbin, setting.adrelid) end as filled_with
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_type as type on type.oid = attribute.atttypid
  join pg_catalog.pg_type as base on base.oid = coalesce(nullif(type.typbasetype, 0), type.oid)
  left join pg_catalog.pg_attrdef as setting
    on setting.adrelid = attribute.attrelid and setting.adnum = attribute.attnum
 where attribute.attrelid = %(oid)s
   and attribute.attnum > 0
   and not attribute.attisdropped
 order by attribute.attnum;

-- name: has_index_by_time
-- Whether an index serves those who read by time.
select exists (
    select
      from pg_catalog.pg_index as index
      join pg_catalog.pg_attribute as attribute
        on attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[0]
     where index.indrelid = %(oid)s
       and attribute.attname = %(column)s
       and index.indpred is null
);
