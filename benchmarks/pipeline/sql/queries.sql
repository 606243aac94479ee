-- name: create_events
create table event (id bigint primary key, body text not null);

-- name: publish_events
create publication {publication} for table event;

-- name: write_event
insert into event values (%(id)s, md5(%(id)s::text));

-- name: last_event
select coalesce(max(id), 0) from event;

-- name: create_writer
create publication {publication} for table account;

-- Half inserts, four tenths updates, a tenth deletes, mixed, in transactions of 100 changes. Every tenth row is there to be
-- deleted, once, in an order that jumps all over the table; updates fall on the others at random. So each of them finds its
-- row, and there are exactly as many changes as were asked for.
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
                    delete from account where id = chosen;
                    deleted := deleted + 1;
                when number % 2 = 0 then
                    chosen := floor(random() * (existing / 10 * 9));
                    chosen := chosen + chosen / 9 + 1;
                    update account set a = a + 1, b = md5(number::text) || ' and more', c = c + 0.25 where id = chosen;
                else
                    inserted := inserted + 1;
                    insert into account
                    values (inserted, number % 1000, md5(number::text) || ' and more', number * 1.25, now());
            end case;
            if number % 100 = 0 then
                commit;
            end if;
        end loop;
    end
    $$;

-- name: write_changes
call write_changes(%(changes)s, %(rows)s);

-- name: content
-- How many rows there are, and a sum over all of them that no order changes.
select count(*) as rows,
       coalesce(sum(hashtextextended(account::text, 0)::numeric), 0)::text as checksum
  from account;

-- name: subscribe
-- PostgreSQL's own replication, as durable as ours; there is nothing to copy, and the slot is there.
create subscription native
connection {source}
publication {publication}
with (create_slot = false, slot_name = {slot}, copy_data = false, synchronous_commit = 'on');

-- name: disable_subscription
alter subscription native disable;

-- name: leave_slot
alter subscription native set (slot_name = none);

-- name: drop_subscription
drop subscription native;
