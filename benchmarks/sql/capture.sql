-- name: create_objects
-- The table of the bars, three more for mixed changes, and procedures that write in small transactions.
create function row_of(g bigint, out id bigint, out a int, out b text, out c numeric, out d timestamptz)
    language sql
    as $$ select g, (g % 1000)::int, md5(g::text) || ' and more', g * 1.25, now() + g * interval '1 ms' $$;
create table t (id bigint primary key, a int, b text, c numeric, d timestamptz);
create table m1 (like t including all);
create table m2 (like t including all);
create table m3 (like t including all);
create table done (id int primary key);
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

-- Half inserts, four tenths updates, a tenth deletes, in transactions of 1,000 changes to one of three tables.
create procedure write_mixed(changes bigint)
    language plpgsql
    as $$
    declare
        target text;
        low bigint;
    begin
        for turn in 0..changes / 1000 - 1 loop
            target := 'm' || turn % 3 + 1;
            low := turn * 500;
            execute format('insert into %I select made.* from generate_series($1 + 1, $1 + 500) g, row_of(g) as made', target)
                using low;
            execute format('update %I set a = a + 1 where id between $1 + 1 and $1 + 400', target) using low;
            execute format('delete from %I where id between $1 + 401 and $1 + 500', target) using low;
            commit;
        end loop;
    end
    $$;

-- name: write_rows
-- One transaction of many rows.
insert into t
select made.*
  from generate_series(%(first)s::bigint, %(last)s::bigint) as g,
       row_of(g) as made;

-- name: write_small
call write_small(%(rows)s);

-- name: write_mixed
call write_mixed(%(changes)s);

-- name: write_done
insert into done values (1);

-- name: empty_table
truncate t;

-- name: create_slot
select pg_create_logical_replication_slot(%(slot)s, 'pgoutput') is not null as created;

-- name: copy_slot
-- Whoever reads a slot moves it, so each reader gets a copy.
select pg_copy_logical_replication_slot(%(slot)s, %(copy)s) is not null as created;

-- name: is_active
select active from pg_replication_slots where slot_name = %(slot)s;

-- name: streamed_bytes
-- What was sent through a slot of transactions that were still in progress.
select stream_bytes from pg_stat_replication_slots where slot_name = %(slot)s;

-- name: drop_slot
select pg_drop_replication_slot(%(slot)s) is not null as dropped;
