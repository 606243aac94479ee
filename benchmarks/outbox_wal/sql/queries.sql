-- name: create_writer
-- Payloads of 1 KiB, and a procedure that writes them in transactions of so many.
create function payload_of(number bigint) returns json
    language sql
    immutable
    return json_build_object('number', number, 'body', left(repeat(md5(number::text), 32), 998 - length(number::text)));

create procedure write_messages(first bigint, last bigint, per_transaction bigint)
    language plpgsql
    as $$
    begin
        while first <= last loop
            insert into headwater.outbox_message (topic, type, key, payload)
            select 'orders', 'OrderPlaced', (number % 1000)::text, payload_of(number)
              from generate_series(first, least(first + per_transaction - 1, last)) as number;
            commit;
            first := first + per_transaction;
        end loop;
    end
    $$;

-- name: write_messages
call write_messages(%(first)s, %(last)s, %(per_transaction)s);

-- name: write_message
-- One, in a transaction of its own; returns its id.
insert into headwater.outbox_message (topic, type, key, payload)
values ('orders', 'OrderPlaced', (%(number)s %% 1000)::text, payload_of(%(number)s))
returning id::text;

-- name: empty_outbox
truncate headwater.outbox_message;

-- name: publish_inserts
-- What the reference reads through, with no more columns than it needs.
create publication {publication}
    for table headwater.outbox_message (id, created_at, type, payload)
    with (publish = 'insert', publish_via_partition_root = true);

-- name: create_slot
select pg_create_logical_replication_slot(%(slot)s, 'pgoutput') is not null as created;

-- name: has_slot
select exists (select from pg_replication_slots where slot_name = %(slot)s);

-- name: drop_slot
select pg_drop_replication_slot(slot_name) is not null as dropped
  from pg_replication_slots
 where slot_name = %(slot)s
   and not active;

-- name: sender_state
-- When the reader of a slot last reported, by its own clock, and how much WAL the slot keeps.
select sender.reply_time,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), slot.restart_lsn)::bigint as retained
  from pg_replication_slots as slot
  left join pg_stat_replication as sender on sender.pid = slot.active_pid
 where slot.slot_name = %(slot)s;

-- name: read_messages
-- As the relay reads them from the table.
select id::text, topic, type, key, payload::text, created_at
  from headwater.outbox_message
 order by created_at, id
 limit %(count)s;

-- name: read_as
-- The transaction that follows sees what an exported snapshot saw.
begin isolation level repeatable read;
set transaction snapshot {snapshot};

-- name: declare_cursor
-- The rows after a checkpoint.
declare outbox_snapshot_cursor cursor for
select id::text, created_at, type, payload::text as payload
  from headwater.outbox_message
 where (created_at, id) > ({at}, {id})
 order by created_at, id;

-- name: fetch_rows
fetch 1000 from outbox_snapshot_cursor;

-- name: end_reading
rollback;

-- name: newest_key
-- Where a checkpoint stands when everything is delivered.
select created_at, id::text
  from headwater.outbox_message
 order by created_at desc, id desc
 limit 1;
