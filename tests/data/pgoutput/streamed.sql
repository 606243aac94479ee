-- Large transactions, sent while in progress or whole: subtransactions aborted and kept, an abort, one in between.
-- read as streamed since 15: proto_version=2 streaming=on messages=true
-- read as parallel since 16: proto_version=4 streaming=parallel messages=true
-- read as unstreamed since 15: proto_version=1 messages=true
create table s (id int primary key, v text);
create publication recorded for table s;
-- recorded from here

begin;
insert into s select g, repeat('a', 1000) from generate_series(1, 80) g;
savepoint one;
insert into s select g, repeat('b', 1000) from generate_series(101, 180) g;
rollback to one;
savepoint two;
insert into s select g, repeat('c', 1000) from generate_series(201, 280) g;
savepoint three;
insert into s select g, repeat('d', 1000) from generate_series(301, 380) g;
release three;
select pg_logical_emit_message(true, 'app', 'streamed');
release two;
update s set v = 'short' where id <= 3;
delete from s where id = 4;
commit;

insert into s values (1000, 'small');

begin;
insert into s select g, repeat('e', 1000) from generate_series(2001, 2080) g;
rollback;

begin;
insert into s select g, repeat('f', 1000) from generate_series(3001, 3080) g;
savepoint four;
alter table s add column w int default 5;
insert into s select g, repeat('g', 1000), 6 from generate_series(3101, 3180) g;
rollback to four;
insert into s values (3200, 'after the rollback');
commit;

begin;
insert into s select g, repeat('h', 1000) from generate_series(4001, 4080) g;
truncate s;
insert into s values (5000, 'after the truncate');
commit;
