-- Every kind of row change, in protocol 1: identities, NULLs, large columns, key changes, truncates, messages, an origin.
-- read as rows since 15: proto_version=1 messages=true
create table item (id int primary key, name text, big text, price numeric(8,2));
alter table item alter column big set storage external;
create table part (a int, b text, note text, primary key (a, b));
create table whole (id int, big text, at timestamptz);
alter table whole alter column big set storage external;
alter table whole replica identity full;
create table bare (x int, y text);
create table "Mixed Case" (id uuid not null, v int);
create unique index by_v on "Mixed Case" (id);
alter table "Mixed Case" replica identity using index by_v;
create publication recorded for table item, part, whole, "Mixed Case";
create publication recorded_inserts for table bare with (publish = 'insert');
-- recorded from here

insert into item values (1, 'anvil', repeat('ab', 2000), 12.5), (2, null, null, null), (3, '', 'ü😀', -0.01);

begin;
update item set name = 'hammer' where id = 1;
update item set id = 20 where id = 2;
update item set big = 'small' where id = 1;
delete from item where id = 3;
commit;

insert into part values (1, 'x', null), (1, 'y', 'n'), (2, 'x', 'm');

update part set b = 'z' where a = 1 and b = 'x';

delete from part where a = 2;

begin;
insert into whole values (1, repeat('cd', 2000), '2026-01-02 03:04:05.678901+00'), (2, null, 'infinity');
update whole set at = '-infinity' where id = 1;
update whole set big = null where id = 2;
delete from whole where id = 1;
commit;

insert into bare values (1, 'one'), (null, null);

insert into "Mixed Case" values ('0f6a8f3e-36ac-4bfb-b2a7-5a1c1b7c8f01', 1);

update "Mixed Case" set v = 2;

select pg_logical_emit_message(true, 'app', 'in a transaction');

select pg_logical_emit_message(false, 'app', '\x00ff'::bytea);

begin;
insert into item values (4, 'four', null, 4);
truncate item, part restart identity cascade;
insert into item values (5, 'five', null, 5);
commit;

begin;
insert into item values (6, 'rolled back', null, null);
rollback;

begin;
insert into item values (7, 'kept', null, null);
savepoint a;
insert into item values (8, 'dropped', null, null);
rollback to a;
insert into item values (9, 'kept', null, null);
commit;

select pg_replication_origin_create('elsewhere');

select pg_replication_origin_session_setup('elsewhere');

begin;
select pg_replication_origin_xact_setup('0/ABCDEF', '2026-01-01 00:00:00+00');
insert into item values (10, 'from elsewhere', null, null);
commit;

select pg_replication_origin_session_reset();

select pg_replication_origin_drop('elsewhere');
