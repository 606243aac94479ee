-- name: lift_timeouts
-- A transaction that waits for its readers is not idle, and takes as long as they do. Not all versions know all of these.
select pg_catalog.set_config(setting.name, '0', false) as value
  from pg_catalog.pg_settings as setting
 where setting.name in ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout');

-- name: limit_locks
-- Before the transaction: a statement that reads would take its snapshot, which has to come after the locks.
select pg_catalog.set_config('lock_timeout', %(milliseconds)s::text, false) as value;

-- name: begin_reading
begin transaction isolation level repeatable read, read only;

-- name: lock_table
-- With its partitions, which hold the rows.
lock table {table} in access share mode;

-- name: fence
-- A transaction id of our own: whatever has one that is less must have ended before a snapshot is taken.
select pg_catalog.pg_current_xact_id()::text::bigint as xid;

-- name: oldest_running
-- Below it every transaction has ended, for everybody to see.
select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint as xid;

-- name: list_blockers
-- Who runs a transaction that is older than the fence, in any database; prepared ones have no process. Not what it runs,
-- which may hold a secret.
select format('process %%s (%%s in %%s, %%s) since %%s', pid, usename, datname, state, xact_start) as blocker
  from pg_catalog.pg_stat_activity
 where backend_xid is not null
   and pg_catalog.age(backend_xid) > pg_catalog.age((%(fence)s & 4294967295)::text::xid)
 union all
select format('prepared transaction %%L since %%s', gid, prepared)
  from pg_catalog.pg_prepared_xacts;

-- name: take_snapshot
select pg_catalog.pg_current_snapshot()::text as snapshot,
       pg_catalog.pg_export_snapshot() as exported,
       pg_catalog.pg_is_in_recovery() as in_recovery,
       pg_catalog.statement_timestamp() as read_at;

-- name: wal_insert_position
select pg_catalog.pg_current_wal_insert_lsn() as position;

-- name: describe_tables
-- How tables are published: which columns, which rows. Takes no lock, unlike pg_publication_tables, so that a table that
-- somebody has locked keeps nobody waiting. Generated columns are published by choice since PostgreSQL 18.
select class.oid,
       namespace.nspname::text as schema,
       class.relname::text as name,
       class.relreplident::text as identity,
       pg_catalog.has_schema_privilege(class.relnamespace, 'usage')
           and pg_catalog.has_table_privilege(class.oid, 'select') as can_select,
       class.relrowsecurity and pg_catalog.row_security_active(class.oid) as rows_hidden,
       coalesce(publication.puballtables, false)
           or member.oid is not null
           or exists (
               select
                 from pg_catalog.pg_publication_namespace as whole
                where whole.pnpubid = publication.oid and whole.pnnspid = class.relnamespace
           )
           or exists (
               select
                 from pg_catalog.pg_publication_rel as above
                 join pg_catalog.pg_partition_ancestors(class.oid) as ancestor on ancestor.relid = above.prrelid
                where class.relispartition and above.prpubid = publication.oid
           ) as is_published,
       array(
           select attribute.attname::text
             from pg_catalog.pg_attribute as attribute
            where attribute.attrelid = class.oid
              and attribute.attnum > 0
              and not attribute.attisdropped
              and case
                      when member.prattrs is not null then attribute.attnum = any(member.prattrs)
                      when attribute.attgenerated = '' then true
                      else attribute.attgenerated = 's' and pg_catalog.to_jsonb(publication) ->> 'pubgencols' = 's'
                  end
            order by attribute.attnum
       ) as columns,
       pg_catalog.pg_get_expr(member.prqual, member.prrelid) as row_filter
  from unnest(%(schemas)s::text[], %(names)s::text[]) as wanted (schema_name, table_name)
  join pg_catalog.pg_namespace as namespace on namespace.nspname = wanted.schema_name
  join pg_catalog.pg_class as class on class.relnamespace = namespace.oid and class.relname = wanted.table_name
  left join pg_catalog.pg_publication as publication on publication.pubname = %(publication)s
  left join pg_catalog.pg_publication_rel as member on member.prpubid = publication.oid and member.prrelid = class.oid;

-- name: list_parts
-- What holds the rows of tables: themselves, or the leaves of partitioned ones, with their sizes; waits for their locks.
with recursive family (table_oid, oid) as (
    select root.oid, root.oid
      from unnest(%(oids)s::oid[]) as root (oid)
     union all
    select family.table_oid, child.inhrelid
      from family
      join pg_catalog.pg_class as parent on parent.oid = family.oid and parent.relkind = 'p'
      join pg_catalog.pg_inherits as child on child.inhparent = family.oid
)
select family.table_oid,
       namespace.nspname::text as schema,
       leaf.relname::text as name,
       (pg_catalog.pg_relation_size(leaf.oid) / pg_catalog.current_setting('block_size')::int)::int as pages,
       greatest(leaf.reltuples, 0)::bigint as rows
  from family
  join pg_catalog.pg_class as leaf on leaf.oid = family.oid and leaf.relkind = 'r'
  join pg_catalog.pg_namespace as namespace on namespace.oid = leaf.relnamespace
 order by family.table_oid, namespace.nspname, leaf.relname;

-- name: list_outputs
-- The function that gives the text of a type as the stream has it.
select type.oid as type_oid,
       namespace.nspname::text as schema,
       function.proname::text as name
  from pg_catalog.pg_type as type
  join pg_catalog.pg_proc as function on function.oid = type.typoutput
  join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
 where type.oid = any(%(oids)s::oid[]);

-- name: read_first_pages
-- Some pages of a table, its columns as text; a snapshot is joined by `import_snapshot` before.
select {columns}
  from only {part}
 where ctid >= {first}
   and ctid < {last}
   and ({row_filter});

-- name: read_last_pages
-- The pages from one on, however many have come since they were counted.
select {columns}
  from only {part}
 where ctid >= {first}
   and ({row_filter});

-- name: import_snapshot
set transaction snapshot {exported};
