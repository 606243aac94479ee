-- name: create_objects
-- A table whose rows are about 200 bytes, as the server sends them, and procedures that write in transactions of 100 rows.
create function order_of(
    g bigint, out id bigint, out customer uuid, out amount numeric, out note text, out created timestamptz, out flag bool
)
    language sql
    as $$
    select g,
           md5('customer ' || g)::uuid,
           (g % 100000) * 1.25,
           repeat(md5(g::text), 3) || ' end',
           timestamptz '2026-01-01 00:00+00' + g * interval '1 s',
           g % 2 = 0
    $$;
create table orders (
    id bigint primary key,
    customer uuid not null,
    amount numeric(12, 2) not null,
    note text,
    created timestamptz not null,
    flag bool not null
);

create procedure write_orders(rows bigint)
    language plpgsql
    as $$
    declare
        before bigint := (select coalesce(max(id), 0) from orders);
        written bigint := 0;
    begin
        while written < rows loop
            insert into orders
            select made.*
              from generate_series(before + written + 1, before + least(written + 100, rows)) as g,
                   order_of(g) as made;
            commit;
            written := written + 100;
        end loop;
    end
    $$;

-- Half inserts, four tenths updates, a tenth deletes, mixed. Every tenth row is there to be deleted, once, in an order that
-- jumps all over the table; updates fall on the others at random. So each of them finds its row, and there are exactly as
-- many changes as were asked for.
create procedure write_changes(changes bigint, existing bigint)
    language plpgsql
    as $$
    declare
        inserted bigint := existing;
        deleted bigint := 0;
        chosen bigint;
    begin
        perform setseed(0.5);
        for number in 1..changes loop
            case
                when number % 10 = 0 then
                    chosen := ((deleted * 7919) % (existing / 10) + 1) * 10;
                    delete from orders where id = chosen;
                    deleted := deleted + 1;
                when number % 2 = 0 then
                    chosen := floor(random() * (existing / 10 * 9));
                    chosen := chosen + chosen / 9 + 1;
                    update orders set amount = amount + 0.25, note = repeat(md5(number::text), 3) || ' end' where id = chosen;
                else
                    inserted := inserted + 1;
                    insert into orders select made.* from order_of(inserted) as made;
            end case;
            if number % 100 = 0 then
                commit;
            end if;
        end loop;
    end
    $$;

-- name: publish_orders
create publication {publication} for table orders;

-- name: write_orders
call write_orders(%(rows)s);

-- name: write_changes
call write_changes(%(changes)s, %(existing)s);

-- name: write_order
insert into orders
select made.*
  from order_of(%(id)s) as made;

-- name: fill_orders
-- All rows in one transaction.
insert into orders
select made.*
  from generate_series(1, %(rows)s::bigint) as g,
       order_of(g) as made;

-- name: vacuum_orders
-- As a table is that has been in use for a while.
vacuum (freeze, analyze) orders;
