-- Topics: logs with gapless offsets, who reads them and how far. Nothing of an earlier release uses these tables.

create table headwater.topic (
    id integer generated always as identity primary key,
    name text not null unique,
    partitions integer not null,
    compression text not null default 'none',
    retention interval,
    retention_bytes bigint,
    max_bytes integer not null,
    -- Where new messages go. Segments are dropped as a whole.
    segment integer not null default 0,
    segment_began_at timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    constraint topic_name check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    constraint topic_partitions check (partitions between 1 and 1024),
    constraint topic_compression check (compression in ('none', 'zstd')),
    constraint topic_retention check (retention > interval '0'),
    constraint topic_retention_bytes check (retention_bytes > 0)
);

comment on table headwater.topic is 'Topics. The messages of each are in topic_log_<id>, in frames: rows that hold one or many messages with consecutive offsets.';

create table headwater.topic_partition (
    topic_id integer not null references headwater.topic on delete cascade,
    partition integer not null,
    first_offset bigint not null default 0,
    primary key (topic_id, partition)
);

comment on column headwater.topic_partition.first_offset is 'The oldest message that is there, or will be; it moves when segments are dropped.';

-- What applications append in transactions of their own: nobody waits for anybody there. It gets its offsets after the
-- commit, from whoever looks next.
create table headwater.topic_staged (
    id bigint generated always as identity primary key,
    topic_id integer not null references headwater.topic on delete cascade,
    partitions integer[] not null,
    counts integer[] not null,
    codecs smallint[] not null,
    frames bytea[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

alter table headwater.topic_staged alter column frames set storage external;

-- In which order staged rows were committed: the number is drawn when the transaction is about to, after whatever it had to
-- wait for.
create table headwater.topic_commit (
    topic_id integer not null,
    ordinal bigint generated always as identity,
    staged_id bigint not null,
    primary key (topic_id, ordinal)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

create function headwater.topic_note_commit() returns trigger
    language plpgsql
as $$
begin
    insert into headwater.topic_commit (topic_id, staged_id) values (new.topic_id, new.id);
    return null;
end
$$;

create constraint trigger topic_staged_commit
    after insert on headwater.topic_staged
    deferrable initially deferred
    for each row execute function headwater.topic_note_commit();

-- What was the last that a producer appended, so that what it sends again after a lost answer is not appended again.
create table headwater.topic_producer (
    topic_id integer not null references headwater.topic on delete cascade,
    producer uuid not null,
    sequence bigint not null,
    first_offsets bigint[] not null,
    appended_at timestamptz not null,
    primary key (topic_id, producer)
) with (fillfactor = 50);

-- A number for an advisory lock: who holds that of a partition may give out its next offsets until the transaction ends.
create function headwater.topic_lock_key(of_topic integer, of_partition integer) returns bigint
    language sql
    immutable
    parallel safe
    return (29807::bigint << 48) | (of_topic::bigint << 16) | of_partition;

-- Append frames and return the offset of the first message of each. The locks are taken in one order by all, so that no two
-- wait for each other; they last until the transaction ends, so that offsets have the order of commits, and no gaps. The
-- newest offset is read from the log itself, by a statement that begins when the locks are held: no row is updated again and
-- again. A producer that sends the same sequence again gets the answer that it missed.
create function headwater.topic_append_1(
    of_topic integer,
    of_partitions integer[],
    of_counts integer[],
    of_codecs smallint[],
    of_frames bytea[],
    of_producer uuid default null,
    of_sequence bigint default null
) returns bigint[]
    language plpgsql
as $$
declare
    known headwater.topic_producer;
    one integer;
    firsts bigint[];
begin
    if of_producer is not null then
        select * into known from headwater.topic_producer where topic_id = of_topic and producer = of_producer for update;
        if not found then
            insert into headwater.topic_producer (topic_id, producer, sequence, first_offsets, appended_at)
            values (of_topic, of_producer, of_sequence - 1, '{}', clock_timestamp())
            on conflict do nothing;
            select * into known from headwater.topic_producer where topic_id = of_topic and producer = of_producer for update;
        end if;
        if known.sequence = of_sequence then
            return known.first_offsets;
        elsif known.sequence > of_sequence then
            raise exception 'producer % has appended up to %, and % is older', of_producer, known.sequence, of_sequence
                using errcode = 'HW001';
        end if;
    end if;
    for one in select distinct given from unnest(of_partitions) as given order by given loop
        perform pg_advisory_xact_lock(headwater.topic_lock_key(of_topic, one));
    end loop;
    execute format(
        $sql$
        with given as (
            select partition, count, codec, frame, place
              from unnest($2, $3, $4, $5) with ordinality as given (partition, count, codec, frame, place)
        ), tip as (
            select known.partition,
                   coalesce(
                       (select log.last_offset
                          from headwater.topic_log_%1$s as log
                         where log.partition = known.partition
                         order by log.last_offset desc
                         limit 1),
                       known.first_offset - 1
                   ) as last_offset
              from headwater.topic_partition as known
             where known.topic_id = $1
               and known.partition = any($2)
        ), inserted as (
            insert into headwater.topic_log_%1$s (partition, last_offset, count, codec, created_at, segment, frame)
            select given.partition,
                   tip.last_offset + sum(given.count) over (partition by given.partition order by given.place),
                   given.count, given.codec, clock_timestamp(),
                   (select topic.segment from headwater.topic where topic.id = $1), given.frame
              from given
              join tip on tip.partition = given.partition
             order by given.place
            returning partition, last_offset
        ), numbered as (
            select given.place,
                   tip.last_offset + 1 - given.count + sum(given.count) over (partition by given.partition order by given.place)
                       as first_offset
              from given
              join tip on tip.partition = given.partition
        )
        select array_agg(numbered.first_offset order by numbered.place),
               (select count(*) from inserted)
          from numbered
        $sql$, of_topic)
       into firsts, one
      using of_topic, of_partitions, of_counts, of_codecs, of_frames;
    if one is distinct from cardinality(of_partitions) then
        raise exception 'topic % has no such partition', of_topic using errcode = 'HW002';
    end if;
    if of_producer is not null then
        update headwater.topic_producer
           set sequence = of_sequence, first_offsets = firsts, appended_at = clock_timestamp()
         where topic_id = of_topic and producer = of_producer;
    end if;
    return firsts;
end
$$;

-- Give offsets to what was staged and committed, in the order of the commits; returns for how many appends. One at a time
-- does that; whoever finds somebody at it has nothing to do.
create function headwater.topic_number_1(of_topic integer, most integer default 500) returns integer
    language plpgsql
as $$
declare
    chosen bigint[];
    given record;
begin
    if not pg_try_advisory_xact_lock(headwater.topic_lock_key(of_topic, 65535)) then
        return 0;
    end if;
    select array_agg(waiting.ordinal) into chosen
      from (
           select ordinal
             from headwater.topic_commit
            where topic_id = of_topic
            order by ordinal
            limit most
      ) as waiting;
    if chosen is null then
        return 0;
    end if;
    with gone as (
        delete from headwater.topic_commit
         where topic_id = of_topic
           and ordinal = any(chosen)
        returning ordinal, staged_id
    ), taken as (
        delete from headwater.topic_staged as staged
         using gone
         where staged.id = gone.staged_id
        returning gone.ordinal, staged.partitions, staged.counts, staged.codecs, staged.frames
    )
    select array_agg(each.partition order by taken.ordinal, each.place) as partitions,
           array_agg(each.count order by taken.ordinal, each.place) as counts,
           array_agg(each.codec order by taken.ordinal, each.place) as codecs,
           array_agg(each.frame order by taken.ordinal, each.place) as frames
      into given
      from taken
     cross join unnest(taken.partitions, taken.counts, taken.codecs, taken.frames)
           with ordinality as each (partition, count, codec, frame, place);
    perform headwater.topic_append_1(of_topic, given.partitions, given.counts, given.codecs, given.frames);
    return cardinality(chosen);
end
$$;

-- The oldest offset of each partition, and the next to be given out. Writes nothing.
create function headwater.topic_bounds_1(of_topic integer)
    returns table (partition integer, first_offset bigint, next_offset bigint)
    language plpgsql
    stable
as $$
begin
    return query execute format(
        $sql$
        select known.partition, known.first_offset,
               coalesce(
                   (select log.last_offset + 1
                      from headwater.topic_log_%1$s as log
                     where log.partition = known.partition
                     order by log.last_offset desc
                     limit 1),
                   known.first_offset
               )
          from headwater.topic_partition as known
         where known.topic_id = $1
         order by known.partition
        $sql$, of_topic)
       using of_topic;
end
$$;

-- Make the table of a segment, beside the log until it is complete: attaching it holds nobody up.
create function headwater.topic_make_segment_1(of_topic integer, of_segment integer) returns void
    language plpgsql
as $$
begin
    execute format(
        $sql$
        create table headwater.topic_log_%1$s_%2$s (
            like headwater.topic_log_%1$s including defaults including constraints including storage,
            constraint topic_log_%1$s_%2$s_pkey primary key (partition, last_offset, segment),
            constraint topic_log_%1$s_%2$s_segment check (segment = %2$s)
        ) with (autovacuum_vacuum_insert_threshold = -1);
        alter table headwater.topic_log_%1$s attach partition headwater.topic_log_%1$s_%2$s for values in (%2$s);
        alter table headwater.topic_log_%1$s_%2$s drop constraint topic_log_%1$s_%2$s_segment;
        $sql$, of_topic, of_segment);
end
$$;

create function headwater.topic_create_1(
    of_name text,
    of_partitions integer,
    of_compression text,
    of_retention interval,
    of_retention_bytes bigint,
    of_max_bytes integer
) returns integer
    language plpgsql
as $$
declare
    of_topic integer;
begin
    insert into headwater.topic (name, partitions, compression, retention, retention_bytes, max_bytes)
    values (of_name, of_partitions, of_compression, of_retention, of_retention_bytes, of_max_bytes)
    returning id into of_topic;
    insert into headwater.topic_partition (topic_id, partition)
    select of_topic, generate_series(0, of_partitions - 1);
    -- A frame is compressed, or not, by us. Its messages are the last `count` offsets up to `last_offset`.
    execute format(
        $sql$
        create table headwater.topic_log_%1$s (
            partition integer not null,
            last_offset bigint not null,
            count integer not null,
            codec smallint not null,
            created_at timestamptz not null,
            segment integer not null,
            frame bytea not null,
            constraint topic_log_%1$s_pkey primary key (partition, last_offset, segment)
        ) partition by list (segment);
        alter table headwater.topic_log_%1$s alter column frame set storage external;
        $sql$, of_topic);
    perform headwater.topic_make_segment_1(of_topic, 0);
    return of_topic;
end
$$;

-- Who reads a topic together. A group has a cursor for each partition: the next offset that it has not dealt with.
create table headwater.topic_group (
    id integer generated always as identity primary key,
    topic_id integer not null references headwater.topic on delete cascade,
    name text not null,
    -- 'partition': one member reads a partition at a time; 'shared': any number claim ranges of it.
    mode text not null,
    is_paused boolean not null default false,
    created_at timestamptz not null default clock_timestamp(),
    unique (topic_id, name),
    constraint topic_group_name check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    constraint topic_group_mode check (mode in ('partition', 'shared'))
);

-- Updated often and never in a column of an index, with room on the page for the next version.
create table headwater.topic_cursor (
    group_id integer not null references headwater.topic_group on delete cascade,
    partition integer not null,
    next_offset bigint not null,
    -- Grows whenever the partition changes hands: who has an older one may not move the cursor any more.
    epoch bigint not null default 0,
    member uuid,
    -- How often what begins at next_offset was given out and not committed; and up to where messages go out one by one, to
    -- find the one that is to blame.
    attempts integer not null default 0,
    suspect_until bigint not null default -1,
    committed_at timestamptz,
    primary key (group_id, partition)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

create table headwater.topic_member (
    group_id integer not null references headwater.topic_group on delete cascade,
    member uuid not null,
    label text not null,
    lease_until timestamptz not null,
    primary key (group_id, member)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- In shared mode, what was given out and is not committed yet; what is below the cursor and not here is done.
create table headwater.topic_claim (
    group_id integer not null,
    partition integer not null,
    first_offset bigint not null,
    last_offset bigint not null,
    epoch bigint not null,
    member uuid not null,
    lease_until timestamptz not null,
    attempts integer not null,
    primary key (group_id, partition, first_offset),
    foreign key (group_id, partition) references headwater.topic_cursor on delete cascade
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

create table headwater.topic_dead_letter (
    group_id integer not null references headwater.topic_group on delete cascade,
    partition integer not null,
    message_offset bigint not null,
    key text,
    payload bytea not null,
    headers json not null,
    created_at timestamptz not null,
    reason text not null,
    attempts integer not null,
    died_at timestamptz not null default clock_timestamp(),
    primary key (group_id, partition, message_offset)
);
