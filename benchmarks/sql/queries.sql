-- name: create_rows
-- A table, all of whose changes are published, and a procedure that writes it in transactions of one row.
create function row_of(g bigint, out id bigint, out a int, out b text, out c numeric, out d timestamptz)
    language sql
    as $$ select g, (g % 1000)::int, md5(g::text) || ' and more', g * 1.25, now() + g * interval '1 ms' $$;
create table t (id bigint primary key, a int, b text, c numeric, d timestamptz);
create publication bench for all tables;

create procedure write_small(rows bigint)
    language plpgsql
    as $$
    begin
        for g in 1..rows loop
            insert into t select made.* from row_of(g) as made;
            commit;
        end loop;
    end
    $$;

-- name: empty_rows
truncate t;

-- name: write_rows
-- One transaction of many rows.
insert into t
select made.*
  from generate_series(%(first)s::bigint, %(last)s::bigint) as g,
       row_of(g) as made;

-- name: write_small
call write_small(%(rows)s);

-- name: create_slot
select pg_create_logical_replication_slot(%(slot)s, 'pgoutput') is not null as created;

-- name: copy_slot
-- Whoever reads a slot moves it, so each reader gets a copy.
select pg_copy_logical_replication_slot(%(slot)s, %(copy)s) is not null as created;

-- name: is_active
select active from pg_replication_slots where slot_name = %(slot)s;

-- name: drop_slot
select pg_drop_replication_slot(%(slot)s) is not null as dropped;

-- name: slot_state
-- Whether somebody reads a slot, and how far it is confirmed.
select active, confirmed_flush_lsn
  from pg_replication_slots
 where slot_name = %(slot)s;

-- name: create_database
-- Copied as files, which is quick and leaves little WAL.
create database {database} template {template} strategy file_copy;

-- name: drop_database
drop database {database} with (force);

-- name: checkpoint
checkpoint;

-- name: create_accounts
-- The table that changes are applied to, the same on both sides.
create table account (id bigint primary key, a int, b text, c numeric, d timestamptz);

-- name: fill_accounts
insert into account
select g, g %% 1000, md5(g::text) || ' and more', g * 1.25, timestamptz '2026-01-01 00:00+00' + g * interval '1 ms'
  from generate_series(1, %(rows)s::bigint) as g;

-- name: vacuum_accounts
-- As a table is that has been in use for a while.
vacuum (freeze, analyze) account;
