-- name: create_tables
-- What the application writes besides its events, and the outbox of the reference: no index but that of its key.
create table entity (
    id bigint primary key,
    name text not null
);

create table reference_event (
    id uuid primary key,
    event_key text not null,
    event_data text not null,
    event_date timestamptz not null,
    publishing_date timestamptz,
    last_retry_date timestamptz,
    expiration_date timestamptz,
    status integer not null,
    retries integer not null
);

-- name: empty_tables
truncate entity, reference_event, headwater.outbox_message;

-- name: insert_entity
insert into entity (id, name)
values (%(id)s, %(name)s);

-- name: insert_bare_event
-- One that nobody holds, as a program in any language would write it.
insert into headwater.outbox_message (topic, type, payload)
values (%(topic)s, %(type)s, %(payload)s);

-- name: insert_reference_event
insert into reference_event (id, event_key, event_data, event_date, status, retries)
values (%(id)s, %(event_key)s, %(event_data)s, now(), 1, 0);

-- name: save_reference_published
-- The original pastes the ids into the text; an array is faster.
update reference_event
   set status = 2, publishing_date = now(), retries = retries + 1, expiration_date = now() + interval '3 hours'
 where id = any(%(ids)s);

-- name: save_reference_failed
update reference_event
   set status = 3, last_retry_date = now(), retries = retries + 1, expiration_date = now() + interval '2 days'
 where id = any(%(ids)s);

-- name: has_pending
-- Whether anything of ours is not known to be published; found by an index of what is pending.
select exists (
    select
      from headwater.outbox_message
     where status = 'pending'
);

-- name: read_published
-- The ids of what is marked as sent.
select id::text
  from headwater.outbox_message
 where status = 'published';

-- name: read_reference_published
select id::text
  from reference_event
 where status = 2;

-- name: count_reference_unsettled
-- What the reference would send again after five minutes.
select count(*)
  from reference_event
 where status <> 2;

-- name: read_messages
-- The events as ready messages.
select id::text, topic, type, payload::text, created_at
  from headwater.outbox_message
 order by created_at, id;

-- name: write_backlog
-- Events that nobody holds, as of an application whose relay was stopped.
insert into headwater.outbox_message (topic, type, payload)
select %(topic)s, %(type)s, json_build_object('id', number, 'name', %(name)s::text)
  from generate_series(1, %(events)s) as number;
