-- name: lock_migrations
-- Held until the transaction ends, so that of several processes that start at once one applies a migration and the rest wait.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('headwater migration of schema ' || %(schema)s::text, 0));

-- name: find_migration_table
-- Whether the schema is there, and whether it has the table that says which migrations it has seen. Read from the tables of
-- the catalog: `to_regclass` may answer from a cache that does not know yet what others did while we waited for the lock.
select exists (
           select 1 from pg_catalog.pg_namespace as namespace where namespace.nspname = %(schema)s
       ) as has_schema,
       exists (
           select 1
             from pg_catalog.pg_class as class
             join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
            where namespace.nspname = %(schema)s and class.relname = 'migration' and class.relkind = 'r'
       ) as has_table;

-- name: create_schema
-- Asked for only when it is missing: `if not exists` wants the right to create it even then.
create schema headwater;

-- name: create_migration_table
-- One row for each migration that was applied; the checksum shows one that was edited afterwards.
create table headwater.migration (
    component text not null,
    number integer not null,
    name text not null,
    checksum text not null,
    applied_at timestamp with time zone not null default now(),
    primary key (component, number)
);

-- name: list_applied
-- What a component has applied, in order.
select number, name, checksum, applied_at
  from headwater.migration
 where component = %(component)s
 order by number;

-- name: record_migration
-- In the same transaction as the migration, so that neither is without the other.
insert into headwater.migration (component, number, name, checksum)
values (%(component)s, %(number)s, %(name)s, %(checksum)s);
