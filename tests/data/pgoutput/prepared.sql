-- Two-phase commit in protocol 3: prepared, then committed or rolled back; also one that is streamed first.
-- read as prepared since 15: proto_version=3 streaming=on two_phase=on
create table p (id int primary key, v text);
create publication recorded for table p;
-- recorded from here

begin;
insert into p values (1, 'prepared');
prepare transaction 'first';

commit prepared 'first';

begin;
insert into p values (2, 'void');
prepare transaction 'second';

rollback prepared 'second';

begin;
insert into p select g, repeat('a', 1000) from generate_series(101, 180) g;
prepare transaction 'large one';

commit prepared 'large one';
