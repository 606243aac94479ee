-- name: list_tables
-- Every relation with columns that is not the system's or a temporary one. The identity index is the one that the server
-- logs old keys by: a deferrable primary key does not serve, and nor does an index that is not valid.
select class.oid,
       namespace.nspname::text as schema,
       class.relname::text as name,
       class.relkind::text as kind,
       class.relpersistence::text as persistence,
       class.relreplident::text as replica_identity,
       pg_catalog.pg_table_is_visible(class.oid) as visible,
       coalesce(family.ancestors, '{}') as ancestors,
       coalesce(keys.key, '{}') as key,
       coalesce(keys.identity, '{}') as identity
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  left join lateral (
      select array_agg(ancestor.relid::oid) as ancestors
        from pg_catalog.pg_partition_ancestors(class.oid) as ancestor
       where class.relispartition and ancestor.relid <> class.oid
  ) as family on true
  left join lateral (
      select array_agg(attribute.attname::text order by part.place) filter (where index.indisprimary) as key,
             array_agg(attribute.attname::text order by part.place)
                 filter (where index.indimmediate
                           and case class.relreplident
                                   when 'd' then index.indisprimary
                                   when 'i' then index.indisreplident
                               end) as identity
        from pg_catalog.pg_index as index
        cross join lateral unnest(index.indkey) with ordinality as part (attnum, place)
        join pg_catalog.pg_attribute as attribute on attribute.attrelid = class.oid and attribute.attnum = part.attnum
       where index.indrelid = class.oid
         and part.place <= index.indnkeyatts
         and (index.indisprimary or index.indisreplident)
         and (index.indisvalid or class.relkind = 'p')
  ) as keys on true
 where class.relkind in ('r', 'p', 'v', 'm', 'f')
   and class.relpersistence <> 't'
   and namespace.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
 order by namespace.nspname, class.relname;

-- name: list_columns
-- The columns of some tables in table order; `key_position` counts from 1 within the primary key.
select attribute.attrelid as table_oid,
       attribute.attnum::int as attnum,
       attribute.attname::text as name,
       attribute.atttypid as type_oid,
       attribute.atttypmod as typmod,
       pg_catalog.format_type(attribute.atttypid, attribute.atttypmod) as type_name,
       attribute.attnotnull as not_null,
       attribute.attgenerated::text as generated,
       attribute.attidentity::text as identity,
       part.place::int as key_position
  from pg_catalog.pg_attribute as attribute
  left join pg_catalog.pg_index as index on index.indrelid = attribute.attrelid and index.indisprimary
  left join lateral unnest(index.indkey) with ordinality as part (attnum, place)
    on part.attnum = attribute.attnum and part.place <= index.indnkeyatts
 where attribute.attrelid = any(%(tables)s::oid[])
   and attribute.attnum > 0
   and not attribute.attisdropped
 order by attribute.attrelid, attribute.attnum;

-- name: list_rights
-- What the current user may do with some tables. Row security hides rows from a snapshot, never from the WAL.
select class.oid,
       pg_catalog.has_schema_privilege(class.relnamespace, 'usage') as can_use_schema,
       pg_catalog.has_table_privilege(class.oid, 'select') as can_select,
       pg_catalog.pg_has_role(class.relowner, 'usage') as is_owner,
       class.relrowsecurity and pg_catalog.row_security_active(class.oid) as rows_hidden
  from pg_catalog.pg_class as class
 where class.oid = any(%(tables)s::oid[]);

-- name: load_types
-- Some types and all that they are made of, to any depth; without a list, those of all columns of all tables of users.
with recursive needed (oid) as (
    select column_type.oid
      from unnest(coalesce(%(oids)s::oid[], (
          select array_agg(distinct attribute.atttypid)
            from pg_catalog.pg_attribute as attribute
            join pg_catalog.pg_class as class on class.oid = attribute.attrelid
           where class.relkind in ('r', 'p')
             and class.oid >= 16384
             and attribute.attnum > 0
             and not attribute.attisdropped
      ))) as column_type (oid)
     union
    select part.oid
      from needed
      join pg_catalog.pg_type as type on type.oid = needed.oid
      cross join lateral (
          select type.typelem where type.typsubscript = 'pg_catalog.array_subscript_handler'::regproc
           union all
          select type.typbasetype where type.typtype = 'd'
           union all
          select range.rngsubtype from pg_catalog.pg_range as range where range.rngtypid = type.oid
           union all
          select range.rngtypid from pg_catalog.pg_range as range where range.rngmultitypid = type.oid
           union all
          select attribute.atttypid
            from pg_catalog.pg_attribute as attribute
           where attribute.attrelid = type.typrelid and attribute.attnum > 0 and not attribute.attisdropped
      ) as part (oid)
)
select type.oid,
       namespace.nspname::text as schema,
       type.typname::text as name,
       case
           when type.typtype = 'b' and type.typoutput = 'pg_catalog.array_out'::regproc then 'a'
           else type.typtype::text
       end as kind,
       coalesce(
           range.rngsubtype,
           multirange.rngtypid,
           case when type.typsubscript = 'pg_catalog.array_subscript_handler'::regproc then type.typelem end,
           0
       ) as element,
       type.typbasetype as base,
       type.typtypmod as base_typmod,
       type.typdelim::text as delimiter,
       coalesce(fields.names, '{}') as field_names,
       coalesce(fields.types, '{}') as field_types,
       coalesce(fields.typmods, '{}') as field_typmods
  from needed
  join pg_catalog.pg_type as type on type.oid = needed.oid
  join pg_catalog.pg_namespace as namespace on namespace.oid = type.typnamespace
  left join pg_catalog.pg_range as range on range.rngtypid = type.oid
  left join pg_catalog.pg_range as multirange on multirange.rngmultitypid = type.oid
  left join lateral (
      select array_agg(attribute.attname::text order by attribute.attnum) as names,
             array_agg(attribute.atttypid order by attribute.attnum) as types,
             array_agg(attribute.atttypmod order by attribute.attnum) as typmods
        from pg_catalog.pg_attribute as attribute
       where attribute.attrelid = type.typrelid and attribute.attnum > 0 and not attribute.attisdropped
  ) as fields on type.typtype = 'c'
 where type.typtype <> 'p'
 order by type.oid;

-- name: read_server
-- What a server is, what it is set to, and what the current user may do on it. Settings that a version lacks are null.
select pg_catalog.current_setting('server_version_num')::int as version_number,
       pg_catalog.current_setting('server_version') as version,
       pg_catalog.current_database()::text as database,
       pg_catalog.pg_is_in_recovery() as in_recovery,
       control.system_identifier::text as system_identifier,
       setting.wal_level,
       setting.max_replication_slots::int as max_replication_slots,
       (select count(*) from pg_catalog.pg_replication_slots)::int as used_replication_slots,
       setting.max_wal_senders::int as max_wal_senders,
       (select count(*) from pg_catalog.pg_stat_replication)::int as used_wal_senders,
       nullif(setting.max_slot_wal_keep_size::bigint, -1) * 1048576 as max_slot_wal_keep_bytes,
       setting.wal_sender_timeout::int as wal_sender_timeout_ms,
       nullif(setting.idle_replication_slot_timeout::int, 0) as idle_replication_slot_timeout_seconds,
       role.rolname::text as user,
       role.rolsuper as is_superuser,
       role.rolreplication as can_replicate,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') as can_create
  from pg_catalog.pg_control_system() as control
 cross join (
      select max(setting) filter (where name = 'wal_level') as wal_level,
             max(setting) filter (where name = 'max_replication_slots') as max_replication_slots,
             max(setting) filter (where name = 'max_wal_senders') as max_wal_senders,
             max(setting) filter (where name = 'max_slot_wal_keep_size') as max_slot_wal_keep_size,
             max(setting) filter (where name = 'wal_sender_timeout') as wal_sender_timeout,
             max(setting) filter (where name = 'idle_replication_slot_timeout') as idle_replication_slot_timeout
        from pg_catalog.pg_settings
  ) as setting
  join pg_catalog.pg_roles as role on role.rolname = current_user;

-- name: read_backend_pid
-- The process that serves this statement.
select pg_catalog.pg_backend_pid();
