-- name: create_reference
-- As the original makes it anew for each run. The table of the first partition is made here, and stands for the others.
drop table if exists log_counter, consumer_offsets;

create table log_counter (
    id integer primary key,
    next_offset bigint not null
);

create table consumer_offsets (
    group_id text not null,
    topic_id integer not null,
    next_offset bigint not null,
    primary key (group_id, topic_id)
);

-- name: create_reference_partition
-- Two unique indexes where one would do, as in the original.
drop table if exists topicpartition1;

create table topicpartition1 (
    id bigserial primary key,
    c_offset bigint not null unique,
    payload bytea not null,
    created_at timestamptz not null default now()
) with (autovacuum_analyze_scale_factor = 0.05);

-- name: drop_reference_partition
drop table if exists topicpartition1;

-- name: insert_counter
insert into log_counter (id, next_offset)
values (%(partition)s, 1);

-- name: insert_reference_group
-- A group is made by its first reader, and begins at the beginning.
insert into consumer_offsets (group_id, topic_id, next_offset)
values (%(group)s, %(partition)s, 1)
on conflict do nothing;

-- name: write_reference
-- Bump the counter, which holds its row until the commit, and insert the rows with the numbers that it gave.
with bumped as (
    update log_counter
       set next_offset = next_offset + %(count)s
     where id = %(partition)s
    returning next_offset - %(count)s as first
)
insert into topicpartition1 (c_offset, payload)
select bumped.first + given.place - 1, given.payload
  from bumped
 cross join unnest(%(payloads)b::bytea[]) with ordinality as given (payload, place);

-- name: claim_reference
-- Lock the pointer of the group and move it, also by nothing.
with tip as (
    select next_offset - 1 as last
      from log_counter
     where id = %(partition)s
), held as (
    select group_id, topic_id, next_offset
      from consumer_offsets
     where group_id = %(group)s
       and topic_id = %(partition)s
       for update
), wanted as (
    select held.group_id, held.topic_id, held.next_offset as first,
           least(%(batch)s, greatest(0, tip.last - held.next_offset + 1)) as delta
      from held
     cross join tip
)
update consumer_offsets as moved
   set next_offset = moved.next_offset + wanted.delta
  from wanted
 where moved.group_id = wanted.group_id
   and moved.topic_id = wanted.topic_id
returning wanted.first, wanted.delta;

-- name: read_reference
select payload, created_at
  from topicpartition1
 where c_offset between %(first)s and %(last)s
 order by c_offset;

-- name: count_reference_readers
select count(*)
  from consumer_offsets;

-- name: count_owners
-- The members that own a partition, of all groups.
select count(distinct (group_id, member))
  from headwater.topic_cursor
 where member is not null;

-- name: drop_topics
-- The logs of all topics, and all that is known of them.
do $$
declare
    one integer;
begin
    for one in select id from headwater.topic loop
        execute format('drop table headwater.topic_log_%s', one);
    end loop;
    delete from headwater.topic;
    delete from headwater.topic_commit;
end
$$;

-- name: fill_wal
-- Most of a file of 16 MB.
select pg_logical_emit_message(false, 'benchmark', repeat(' ', 15 * 1024 * 1024));

-- name: switch_wal
-- The next one begins a file.
select pg_switch_wal();

-- name: reuse_wal
-- What was written before is not needed any more, and its files are there to be used again.
checkpoint;

-- name: read_meter
-- What the server has written and flushed so far, and its clock. The WAL is that of all databases.
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as wal_bytes,
       (select sum(fsyncs) from pg_stat_io where object = 'wal')::float8 as flushes,
       (select sum(xact_commit) from pg_stat_database)::float8 as commits,
       (select sum(n_dead_tup) from pg_stat_user_tables)::float8 as dead_rows;

-- name: read_wal_of_readers
-- What the backends that serve readers have written themselves.
select coalesce(sum((pg_stat_get_backend_wal(pid)).wal_bytes), 0)::float8
  from pg_stat_activity
 where application_name = %(application_name)s;

-- name: read_sizes
-- Of all tables with their indexes and TOAST.
select sum(pg_total_relation_size(oid))::float8
  from pg_class
 where relkind = 'r'
   and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace);

-- name: hold
-- The first statement of a transaction that is held open, with a snapshot and an id of its own.
select pg_current_xact_id()::text;

-- name: create_orders
-- What a transaction of an application writes besides its append.
drop table if exists orders;

create table orders (
    id bigserial primary key,
    total integer not null
);

-- name: insert_order
insert into orders (total)
values (%(total)s);

-- name: pause
-- Work that a transaction does after its append.
select pg_sleep(%(seconds)s);

-- name: create_deferred
-- The way that was not taken: what is appended gets its offsets when its transaction is about to end, under the locks.
drop table if exists deferred_append;

create table deferred_append (
    id bigserial primary key,
    topic_id integer not null,
    partitions integer[] not null,
    counts integer[] not null,
    codecs smallint[] not null,
    frames bytea[] not null
);

create or replace function append_deferred() returns trigger
    language plpgsql
as $$
begin
    perform headwater.topic_hold_1(new.topic_id, new.partitions);
    execute format('select headwater.topic_log_%s_append_1($1, $2, $3, $4)', new.topic_id)
      using new.partitions, new.counts, new.codecs, new.frames;
    return null;
end
$$;

create constraint trigger deferred_append_commit
    after insert on deferred_append
    deferrable initially deferred
    for each row execute function append_deferred();

-- name: insert_deferred
insert into deferred_append (topic_id, partitions, counts, codecs, frames)
values (%(topic_id)s, %(partitions)b::integer[], %(counts)b::integer[], %(codecs)b::smallint[], %(frames)b::bytea[]);

-- name: create_copied
-- Messages one per row.
drop table if exists copied_message;

create table copied_message (
    partition integer not null,
    message_offset bigint not null,
    key text,
    payload bytea not null,
    created_at timestamptz not null
);

-- name: insert_copied
-- The payloads of a frame for each of its places in the log.
insert into copied_message (partition, message_offset, payload, created_at)
select frame.partition, frame.first_offset + given.place - 1, given.payload, clock_timestamp()
  from unnest(%(partitions)b::integer[], %(firsts)b::bigint[]) as frame (partition, first_offset)
 cross join unnest(%(payloads)b::bytea[]) with ordinality as given (payload, place);

-- name: vacuum_copied
-- So that no read has to set hint bits.
vacuum (analyze) copied_message;
