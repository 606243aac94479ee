-- name: lock_demo
-- Held for the length of the session: two demos in one database would write into each other's tables.
select pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('headwater demo', 0)) as held;

-- name: find_existing
-- What bears our names already. What a demo has made says so in its comment; a slot has none, and is made after the schema
-- and removed before it. Whoever is connected to the target is a demo in another database of this server.
select 'schema ' || namespace.nspname as name,
       coalesce(pg_catalog.obj_description(namespace.oid, 'pg_namespace') = 'made by headwater demo', false) as is_ours,
       false as is_used
  from pg_catalog.pg_namespace as namespace
 where namespace.nspname = 'headwater_demo'
 union all
select 'publication ' || publication.pubname as name,
       coalesce(pg_catalog.obj_description(publication.oid, 'pg_publication') = 'made by headwater demo', false) as is_ours,
       false as is_used
  from pg_catalog.pg_publication as publication
 where publication.pubname = 'headwater_demo'
 union all
select 'slot ' || slot.slot_name as name,
       coalesce(slot.database = pg_catalog.current_database(), false) and exists (
           select
             from pg_catalog.pg_namespace as namespace
            where namespace.nspname = 'headwater_demo'
              and pg_catalog.obj_description(namespace.oid, 'pg_namespace') = 'made by headwater demo'
       ) as is_ours,
       false as is_used
  from pg_catalog.pg_replication_slots as slot
 where slot.slot_name = 'headwater_demo'
 union all
select 'database ' || database.datname as name,
       coalesce(pg_catalog.shobj_description(database.oid, 'pg_database') = 'made by headwater demo', false) as is_ours,
       exists (
           select
             from pg_catalog.pg_stat_activity as activity
            where activity.datid = database.oid
              and activity.backend_type = 'client backend'
       ) as is_used
  from pg_catalog.pg_database as database
 where database.datname = 'headwater_demo_target';

-- name: create_schema
-- In the source and in the target: a sink makes tables, and leaves types to whoever knows what they are.
create schema headwater_demo;
comment on schema headwater_demo is 'made by headwater demo';
create type headwater_demo.order_status as enum ('placed', 'paid', 'shipped');

-- name: create_tables
-- A small shop, one table for each thing that must be got right: a key that changes and an array (customer), an enum and
-- JSON (orders), a value too large for its row (document), a whole old row in the WAL (cart), volume (reading).
create sequence headwater_demo.number;
create table headwater_demo.customer (
    email text primary key,
    name text not null,
    balance numeric(12, 2) not null,
    tags text[],
    since timestamptz not null
);
create table headwater_demo.orders (
    id bigint primary key,
    customer text not null,
    status headwater_demo.order_status not null,
    amount numeric not null,
    details jsonb,
    placed_at timestamptz not null
);
create table headwater_demo.document (
    id bigint primary key,
    title text not null,
    revision int not null,
    body text not null
);
alter table headwater_demo.document alter column body set storage external;
create table headwater_demo.cart (
    session bigint,
    item int,
    quantity int not null,
    note text,
    primary key (session, item)
);
alter table headwater_demo.cart replica identity full;
create table headwater_demo.reading (
    id bigint primary key,
    sensor int not null,
    value double precision not null,
    taken_at timestamptz not null,
    note text
);

-- name: create_creek
-- Creek's own schema, unless a producer has made it before.
do $$
begin
    if to_regnamespace('_creek') is null then
        create schema _creek;
        comment on schema _creek is 'made by headwater demo';
    end if;
end
$$;

-- name: mark_publication
-- By this the next demo knows what an earlier one has left behind.
comment on publication headwater_demo is 'made by headwater demo';

-- name: create_target
-- From the template that nobody is connected to.
create database headwater_demo_target template template0;

-- name: mark_target
-- By this the next demo knows what an earlier one has left behind.
comment on database headwater_demo_target is 'made by headwater demo';

-- name: end_reader
-- Whoever still reads our slot, or waits for it to be made; the demo has ended, and so must they.
select pg_catalog.pg_terminate_backend(slot.active_pid, 10000) as ended
  from pg_catalog.pg_replication_slots as slot
 where slot.slot_name = 'headwater_demo'
   and slot.database = pg_catalog.current_database()
   and slot.active_pid is not null;

-- name: drop_slot
-- And the WAL that only it keeps.
select pg_catalog.pg_drop_replication_slot(slot.slot_name) is not null as dropped
  from pg_catalog.pg_replication_slots as slot
 where slot.slot_name = 'headwater_demo'
   and slot.database = pg_catalog.current_database();

-- name: drop_target
-- All that the pipeline has made is in there, its state too.
drop database if exists headwater_demo_target with (force);

-- name: drop_publication
-- The tables stay as they are.
drop publication if exists headwater_demo;

-- name: drop_schema
-- Piece by piece: what somebody else has built on it stops this, instead of going with it.
drop table if exists
    headwater_demo.customer,
    headwater_demo.orders,
    headwater_demo.document,
    headwater_demo.cart,
    headwater_demo.reading;
drop type if exists headwater_demo.order_status;
drop sequence if exists headwater_demo.number;
drop schema if exists headwater_demo;

-- name: read_clock
-- The server's time, in which commits are stamped.
select pg_catalog.clock_timestamp() as now;

-- name: set_forms
-- The forms in which psycopg can read what a table holds, whatever the server's or the role's defaults are.
set datestyle = 'ISO';
set timezone = 'UTC';
set extra_float_digits = 1;

-- name: read_rows
-- A table as it is.
select {columns}
  from {table};

-- name: add_customers
-- An array with a NULL, and with all that must be quoted in one; sometimes none at all.
insert into headwater_demo.customer (email, name, balance, tags, since)
select 'customer' || nextval('headwater_demo.number') || '@example.com',
       (array['Ada', 'Barbara', 'Edsger', 'Grace', 'Leslie', 'Tony'])[1 + floor(random() * 6)],
       (random() * 1000)::numeric(12, 2),
       case when random() < 0.8 then array['new', null, 'with "quotes", commas'] end,
       clock_timestamp()
  from generate_series(1, %(count)s);

-- name: pay
-- An update that leaves the key alone.
update headwater_demo.customer as customer
   set balance = customer.balance + (random() * 100)::numeric(12, 2)
 where customer.email in (select email from headwater_demo.customer order by random() limit %(count)s);

-- name: change_email
-- The key itself changes.
update headwater_demo.customer as customer
   set email = 'customer' || nextval('headwater_demo.number') || '@example.com'
 where customer.email = (select email from headwater_demo.customer order by random() limit 1);

-- name: remove_customers
-- Of a deleted row the WAL holds the key.
delete from headwater_demo.customer as customer
 where customer.email in (select email from headwater_demo.customer order by random() limit %(count)s);

-- name: place_orders
-- An enum, a numeric of any scale, and JSON, with a NULL inside of it.
insert into headwater_demo.orders (id, customer, status, amount, details, placed_at)
select nextval('headwater_demo.number'),
       'customer' || floor(random() * 100),
       'placed',
       (random() * 500)::numeric,
       jsonb_build_object('item', floor(random() * 50), 'note', case when random() < 0.2 then 'ring twice' end),
       clock_timestamp()
  from generate_series(1, %(count)s);

-- name: advance_orders
-- Each order takes its next status.
update headwater_demo.orders as orders
   set status = case orders.status when 'placed' then 'paid' else 'shipped' end::headwater_demo.order_status
 where orders.id in (select id from headwater_demo.orders order by random() limit %(count)s);

-- name: remove_orders
-- The oldest, so that the table does not grow for ever.
delete from headwater_demo.orders as orders
 where orders.id in (select id from headwater_demo.orders order by id limit %(count)s);

-- name: write_documents
-- A body of 6,400 characters, which the server stores outside of its row.
insert into headwater_demo.document (id, title, revision, body)
select nextval('headwater_demo.number'),
       'A document',
       1,
       (select string_agg(md5(random()::text), '') from generate_series(1, 200))
  from generate_series(1, %(count)s);

-- name: retitle_documents
-- The body stays as it is, so the WAL does not hold it again.
update headwater_demo.document as document
   set title = 'Seen ' || document.revision || ' times', revision = document.revision + 1
 where document.id in (select id from headwater_demo.document order by random() limit %(count)s);

-- name: rewrite_documents
-- Now the WAL holds the body again.
update headwater_demo.document as document
   set body = (select string_agg(md5(random()::text), '') from generate_series(1, 200))
 where document.id in (select id from headwater_demo.document order by random() limit %(count)s);

-- name: remove_documents
-- The body goes too.
delete from headwater_demo.document as document
 where document.id in (select id from headwater_demo.document order by random() limit %(count)s);

-- name: fill_cart
-- A key of two columns.
insert into headwater_demo.cart (session, item, quantity, note)
select session.number, item, 1 + floor(random() * 5), case when item = 1 then 'first' end
  from nextval('headwater_demo.number') as session (number)
 cross join generate_series(1, %(count)s) as item;

-- name: change_cart
-- The WAL holds the whole old row.
update headwater_demo.cart as cart
   set quantity = cart.quantity + 1
 where (cart.session, cart.item) in (select session, item from headwater_demo.cart order by random() limit %(count)s);

-- name: empty_cart
-- The WAL holds the whole old row here too.
delete from headwater_demo.cart as cart
 where (cart.session, cart.item) in (select session, item from headwater_demo.cart order by random() limit %(count)s);

-- name: truncate_cart
-- All rows at once, and none of them in the WAL.
truncate headwater_demo.cart;

-- name: write_readings
-- A stretch of the large transaction.
insert into headwater_demo.reading (id, sensor, value, taken_at, note)
select id, mod(id, 50), random(), clock_timestamp(), md5(id::text)
  from generate_series(%(first)s::bigint, %(last)s::bigint) as id;

-- name: drop_creek
do $$
begin
    if obj_description(to_regnamespace('_creek'), 'pg_namespace') = 'made by headwater demo' then
        drop schema _creek cascade;
    end if;
end
$$;

-- name: last_applied
select max(subscription.timestamp) from _creek_consumer.subscriptions as subscription;

-- name: create_shop
-- In the target, once it is compared: what events are about.
create table headwater_demo.sale (id bigint generated always as identity primary key, customer integer not null);

-- name: write_sale
insert into headwater_demo.sale (customer) values (%(customer)s) returning id;

-- name: list_events
select id::text from headwater.outbox_message;

-- name: count_waiting
select count(*) from headwater.outbox_message where status = 'pending';
