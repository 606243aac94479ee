-- name: create_objects
-- Three more tables like that of `create_rows`, for mixed changes, and one for the end of a large transaction.
create table m1 (like t including all);
create table m2 (like t including all);
create table m3 (like t including all);
create table done (id int primary key);

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

-- name: write_mixed
call write_mixed(%(changes)s);

-- name: write_done
insert into done values (1);

-- name: streamed_bytes
-- What was sent through a slot of transactions that were still in progress.
select stream_bytes from pg_stat_replication_slots where slot_name = %(slot)s;
