-- Events of an application until they are relayed, and what consumers remember of messages. Nothing of an earlier release
-- uses these tables.

-- Version 7 of RFC 9562, with the fraction of the millisecond in 12 bits as PostgreSQL 18 has it. One function for all
-- versions of the server, so that an upgrade of the server changes nothing.
create function headwater.uuid_v7() returns uuid
    language sql
    volatile
    parallel safe
    return (
        select encode(
                   int8send((clock.micros / 1000) << 16 | 28672 | (clock.micros % 1000) * 4096 / 1000)
                       || substring(uuid_send(gen_random_uuid()) from 9),
                   'hex'
               )::uuid
          from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint) as clock (micros)
    );

-- The key is led by the partition key and serves those who read in the order of writing. An id is unique by its making, not
-- by an index: over partitions there is none.
create table headwater.outbox_message (
    id uuid not null default headwater.uuid_v7(),
    created_at timestamptz not null default clock_timestamp(),
    xid xid8 not null default pg_current_xact_id(),
    topic text not null,
    type text not null,
    key text,
    payload json not null,
    headers json not null default '{}',
    status text not null default 'pending',
    attempts integer not null default 0,
    next_attempt_at timestamptz,
    locked_by text,
    locked_until timestamptz,
    published_at timestamptz,
    error text,
    constraint outbox_message_pkey primary key (created_at, id),
    constraint outbox_message_created_at check (isfinite(created_at)),
    constraint outbox_message_topic
        check (octet_length(topic) between 1 and 255 and topic !~ '[\u0001-\u001f\u007f-\u009f]'),
    constraint outbox_message_type
        check (octet_length(type) between 1 and 255 and type !~ '[\u0001-\u001f\u007f-\u009f]'),
    constraint outbox_message_headers
        check (json_typeof(headers) = 'object' and not headers::jsonb @? '$.* ? (@.type() != "string")')
) partition by range (created_at);

-- What no other partition is for: an application must not fail because nobody has made the partition of the day.
-- Nothing here is read by index alone, and all is soon dropped: a vacuum for the sake of inserts is wasted.
create table headwater.outbox_message_default
    partition of headwater.outbox_message default
    with (autovacuum_vacuum_insert_threshold = -1);

comment on table headwater.outbox_message is 'Events that applications write in their own transactions. Write id, topic, type, key, payload and headers; the rest is filled in.';
comment on column headwater.outbox_message.xid is 'The transaction that wrote the row; what recovery rests on. Never set it.';
comment on column headwater.outbox_message.created_at is 'When the row was written, by the clock of the database.';
comment on column headwater.outbox_message.status is 'With the columns after it, for a relay that reads the table; a relay that reads the WAL leaves them alone.';

-- No foreign key leads to the outbox: what was received is remembered for longer than it is kept there.
create table headwater.inbox_message (
    consumer text not null,
    message_id text not null,
    received_at timestamptz not null default now(),
    primary key (consumer, message_id)
);

comment on table headwater.inbox_message is 'The messages that each consumer has dealt with, written in the transaction that dealt with them.';
