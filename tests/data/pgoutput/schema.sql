-- A table that changes its shape between and within transactions, and types of the user's own.
-- read as schema since 15: proto_version=1
create type mood as enum ('sad', 'ok');
create domain positive as int check (value > 0);
create type pair as (x int, y text);
create table t (id int primary key, a text);
create publication recorded for all tables;
-- recorded from here

insert into t values (1, 'before');

alter table t add column b int default 7;

insert into t values (2, 'added', 8);

begin;
insert into t values (3, 'same', 1);
alter table t rename column a to c;
insert into t values (4, 'renamed', 2);
alter table t drop column b;
insert into t values (5, 'dropped');
alter table t alter column c type varchar(20);
insert into t values (6, 'retyped');
commit;

create table u (id int primary key, m mood, p positive, r pair, l int[], e mood[]);

insert into u values (1, 'ok', 3, (1, 'a "quoted", one'), '{{1,null},{3,4}}', '{sad,null}');

alter table t replica identity full;

update t set c = 'full' where id = 1;

drop table t;

create table t (other text primary key);

insert into t values ('new');
