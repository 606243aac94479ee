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
    -- No foreign key: each append would lock the row of the topic, which all share.
    topic_id integer not null,
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

-- What producers appended of late, so that what one sends again after a lost answer is not appended again. A row for each
-- append, and none that is updated: it would bloat while an old transaction is open.
create table headwater.topic_producer (
    -- No foreign key, as above.
    topic_id integer not null,
    producer uuid not null,
    sequence bigint not null,
    first_offsets bigint[] not null,
    appended_at timestamptz not null,
    primary key (topic_id, producer, sequence)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- A number for an advisory lock: who holds that of a partition may give out its next offsets until the transaction ends.
create function headwater.topic_lock_key(of_topic integer, of_partition integer) returns bigint
    language sql
    immutable
    parallel safe
    return (29807::bigint << 48) | (of_topic::bigint << 16) | of_partition;

-- What waits for others and goes on by what they did has to see it: with the snapshot of an earlier statement it would give out
-- offsets that others have given out since.
create function headwater.topic_require_latest_1() returns void
    language plpgsql
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'topics cannot be written in a transaction that is %; use read committed, the default of PostgreSQL',
            current_setting('transaction_isolation') using errcode = 'HW003';
    end if;
end
$$;

-- Until the transaction ends no segment of the topic is dropped, and no partitions are added: for those who choose a place. It
-- has the rights of its owner, since to lock a row takes the right to change it, which readers do not have.
create function headwater.topic_keep_1(of_topic integer) returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform headwater.topic_require_latest_1();
    perform from headwater.topic where id = of_topic for share;
end
$$;

-- Take the locks for appends to partitions. What was staged and committed before comes first: of that, as much as is numbered
-- at a time is numbered. Whether that was all; otherwise it is asked again, in this transaction or in the next. The locks are
-- taken in one order by all, that of numbering before those of partitions, so that no two wait for each other. It has the rights
-- of its owner: who may only append does not see what others have staged, and numbers it all the same.
create function headwater.topic_hold_1(of_topic integer, of_partitions integer[]) returns boolean
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    newest bigint;
begin
    perform headwater.topic_require_latest_1();
    if not exists (select from headwater.topic_commit where topic_id = of_topic) then
        perform headwater.topic_lock_1(of_topic, of_partitions);
        return true;
    end if;
    perform pg_advisory_xact_lock(headwater.topic_lock_key(of_topic, 65535));
    -- All of them, since it is not known yet where the next ones go.
    perform headwater.topic_lock_1(of_topic, array(select partition from headwater.topic_partition where topic_id = of_topic));
    newest := (select max(ordinal) from headwater.topic_commit where topic_id = of_topic);
    perform headwater.topic_number_next_1(of_topic);
    return not exists (select from headwater.topic_commit where topic_id = of_topic and ordinal <= newest);
end
$$;

create function headwater.topic_lock_1(of_topic integer, of_partitions integer[]) returns void
    language plpgsql
as $$
declare
    one integer;
begin
    for one in select distinct given from unnest(of_partitions) as given order by given loop
        perform pg_advisory_xact_lock(headwater.topic_lock_key(of_topic, one));
    end loop;
end
$$;

-- Make the functions that append to a topic. Each topic has its own, since their plans are kept: to plan a statement anew costs
-- more than to insert a frame, and copies all frames on the way.
-- The first numbers and inserts frames for one who holds the locks of their partitions. The newest offset is read from the log
-- itself, by a statement that begins when the locks are held: no row is updated again and again.
-- The second takes the locks, and returns the offset of the first message of each frame, or null if more was staged before than
-- is numbered at a time: then it is asked again. The locks last until the transaction ends, so that offsets have the order of
-- commits, and no gaps. A producer that sends the same sequence again gets the answer that it missed.
create function headwater.topic_make_append_1(of_topic integer) returns void
    language plpgsql
as $$
begin
    execute format(
        $sql$
        create function headwater.topic_log_%1$s_append_1(
            of_partitions integer[], of_counts integer[], of_codecs smallint[], of_frames bytea[]
        ) returns bigint[]
            language plpgsql
        as $body$
        declare
            of_segment integer := (select topic.segment from headwater.topic where topic.id = %1$s);
            tips bigint[];
            firsts bigint[];
            one integer;
        begin
            for place in 1 .. cardinality(of_partitions) loop
                one := of_partitions[place];
                if tips[one] is null then
                    tips[one] := coalesce(
                        (select log.last_offset
                           from headwater.topic_log_%1$s as log
                          where log.partition = one
                            and log.segment = of_segment
                          order by log.last_offset desc
                          limit 1),
                        (select log.last_offset
                           from headwater.topic_log_%1$s as log
                          where log.partition = one
                          order by log.last_offset desc
                          limit 1),
                        (select known.first_offset - 1
                           from headwater.topic_partition as known
                          where known.topic_id = %1$s
                            and known.partition = one)
                    );
                    if tips[one] is null then
                        raise exception 'topic %1$s has no partition %%; find the topic again', one using errcode = 'HW002';
                    end if;
                end if;
                firsts[place] := tips[one] + 1;
                tips[one] := tips[one] + of_counts[place];
                insert into headwater.topic_log_%1$s (partition, last_offset, count, codec, created_at, segment, frame)
                values (one, tips[one], of_counts[place], of_codecs[place], clock_timestamp(), of_segment, of_frames[place]);
            end loop;
            return firsts;
        end
        $body$;

        create function headwater.topic_log_%1$s_produce_1(
            of_partitions integer[],
            of_counts integer[],
            of_codecs smallint[],
            of_frames bytea[],
            of_producer uuid,
            of_sequence bigint
        ) returns bigint[]
            language plpgsql
        as $body$
        declare
            known headwater.topic_producer;
            firsts bigint[];
        begin
            if not headwater.topic_hold_1(%1$s, of_partitions) then
                return null;
            end if;
            -- With the locks, so that an attempt whose answer was lost has ended.
            select producer.* into known
              from headwater.topic_producer as producer
             where producer.topic_id = %1$s
               and producer.producer = of_producer
             order by producer.sequence desc
             limit 1;
            if known.sequence = of_sequence then
                return known.first_offsets;
            elsif known.sequence > of_sequence then
                raise exception 'producer %% has appended up to %%, and %% is older; give each producer an id of its own',
                    of_producer, known.sequence, of_sequence using errcode = 'HW001';
            end if;
            firsts := headwater.topic_log_%1$s_append_1(of_partitions, of_counts, of_codecs, of_frames);
            insert into headwater.topic_producer (topic_id, producer, sequence, first_offsets, appended_at)
            values (%1$s, of_producer, of_sequence, firsts, clock_timestamp());
            if of_sequence %% 100 = 0 then
                delete from headwater.topic_producer
                 where topic_id = %1$s
                   and producer = of_producer
                   and sequence < of_sequence;
            end if;
            return firsts;
        end
        $body$;
        $sql$, of_topic);
end
$$;

-- Give offsets to what was staged and committed, in the order of the commits; returns for how many appends. One at a time
-- does that; whoever finds somebody at it has nothing to do.
create function headwater.topic_number_1(of_topic integer) returns integer
    language plpgsql
as $$
begin
    perform headwater.topic_require_latest_1();
    if not pg_try_advisory_xact_lock(headwater.topic_lock_key(of_topic, 65535)) then
        return 0;
    end if;
    return headwater.topic_number_next_1(of_topic);
end
$$;

-- The next of them, for the one who does that: the first, and as many more as are no more than so many and so many bytes. All
-- of them pass through one array, which holds no more than 1 GB.
create function headwater.topic_number_next_1(
    of_topic integer,
    most integer default 500,
    most_bytes bigint default 16 * 1024 * 1024
) returns integer
    language plpgsql
as $$
declare
    chosen bigint[];
    given record;
begin
    select array_agg(sized.ordinal) into chosen
      from (
           select waiting.ordinal,
                  row_number() over (order by waiting.ordinal) as place,
                  -- As it is stored: the frames themselves are not read for that.
                  sum(pg_column_size(staged.frames)) over (order by waiting.ordinal) as bytes
             from (
                  select ordinal, staged_id
                    from headwater.topic_commit
                   where topic_id = of_topic
                   order by ordinal
                   limit most
             ) as waiting
             join headwater.topic_staged as staged on staged.id = waiting.staged_id
      ) as sized
     where sized.place = 1
        or sized.bytes <= most_bytes;
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
    perform headwater.topic_lock_1(of_topic, given.partitions);
    execute format('select headwater.topic_log_%s_append_1($1, $2, $3, $4)', of_topic)
      using given.partitions, given.counts, given.codecs, given.frames;
    return cardinality(chosen);
end
$$;

-- The oldest offset of each partition, and the next to be given out. Writes nothing, and is volatile all the same, here and
-- below: who has waited for a drop has to see what it has done.
create function headwater.topic_bounds_1(of_topic integer)
    returns table (partition integer, first_offset bigint, next_offset bigint)
    language plpgsql
    volatile
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

-- Have new messages go to a new segment; whether that was done, and not by somebody else before. All who append hold it up for
-- the commit only: it takes their locks last, so that from then on nobody writes to the segment before.
create function headwater.topic_rotate_1(of_topic integer, of_segment integer) returns boolean
    language plpgsql
as $$
declare
    one integer;
begin
    perform from headwater.topic where id = of_topic and segment = of_segment for no key update;
    if not found then
        return false;
    end if;
    perform headwater.topic_make_segment_1(of_topic, of_segment + 1);
    for one in select partition from headwater.topic_partition where topic_id = of_topic order by partition loop
        perform pg_advisory_xact_lock(headwater.topic_lock_key(of_topic, one));
    end loop;
    update headwater.topic
       set segment = of_segment + 1, segment_began_at = clock_timestamp()
     where id = of_topic;
    return true;
end
$$;

-- Drop segments up to one, which is not the last, and move the oldest offsets; returns which were dropped. Readers wait
-- meanwhile, so the caller bounds how long it waits for them.
create function headwater.topic_drop_segments_1(of_topic integer, up_to integer) returns integer[]
    language plpgsql
as $$
declare
    gone integer[];
    one integer;
begin
    -- First, as by those who choose a place and then read there.
    perform from headwater.topic where id = of_topic for no key update;
    execute format('lock table only headwater.topic_log_%s in access exclusive mode', of_topic);
    select coalesce(array_agg(listed.segment order by listed.segment), '{}') into gone
      from headwater.topic_segments_1(of_topic) as listed
     where listed.segment <= up_to
       and listed.segment < (select topic.segment from headwater.topic where topic.id = of_topic);
    foreach one in array gone loop
        execute format(
            $sql$
            update headwater.topic_partition as known
               set first_offset = log.next_offset
              from (select partition, max(last_offset) + 1 as next_offset from headwater.topic_log_%1$s_%2$s group by partition)
                   as log
             where known.topic_id = %1$s
               and known.partition = log.partition;
            drop table headwater.topic_log_%1$s_%2$s;
            $sql$, of_topic, one);
    end loop;
    return gone;
end
$$;

-- The segments that a log has, and their size.
create function headwater.topic_segments_1(of_topic integer) returns table (segment integer, bytes bigint)
    language sql
    stable
as $$
    select substring(class.relname from '[0-9]+$')::integer, coalesce(pg_catalog.pg_total_relation_size(class.oid), 0)
      from pg_catalog.pg_inherits as child
      join pg_catalog.pg_class as class on class.oid = child.inhrelid
     where child.inhparent = pg_catalog.to_regclass('headwater.topic_log_' || of_topic)
$$;

-- Give a topic more partitions, and those who read it a place in each. Returns how many it has then.
create function headwater.topic_add_partitions_1(of_topic integer, of_partitions integer) returns integer
    language plpgsql
as $$
declare
    had integer;
begin
    select partitions into had from headwater.topic where id = of_topic for no key update;
    if of_partitions > had then
        update headwater.topic set partitions = of_partitions where id = of_topic;
        insert into headwater.topic_partition (topic_id, partition)
        select of_topic, generate_series(had, of_partitions - 1);
        insert into headwater.topic_cursor (group_id, partition, next_offset)
        select reader.id, added.partition, 0
          from headwater.topic_group as reader
         cross join generate_series(had, of_partitions - 1) as added (partition)
         where reader.topic_id = of_topic
            on conflict do nothing;
        -- Members hear of it with their next poll.
        update headwater.topic_group set generation = generation + 1 where topic_id = of_topic;
    end if;
    return greatest(had, of_partitions);
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
    perform headwater.topic_make_append_1(of_topic);
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
    -- Grows whenever members come, go or exchange partitions, and when cursors are moved by hand: members look at it with each
    -- poll, and decide what is whose only if it has not changed since they looked.
    generation bigint not null default 0,
    created_at timestamptz not null default clock_timestamp(),
    unique (topic_id, name),
    constraint topic_group_name check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    constraint topic_group_mode check (mode in ('partition', 'shared'))
) with (fillfactor = 50);

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

-- In shared mode, what was given out and is not committed yet; what is below the cursor and not here is done. A claim lasts as
-- long as its member is there.
create table headwater.topic_claim (
    group_id integer not null,
    partition integer not null,
    first_offset bigint not null,
    last_offset bigint not null,
    epoch bigint not null,
    member uuid not null,
    -- How often it was claimed, up to max_attempts; one more if it is a single message that was given out alone.
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

-- The offset of the first message that is not older than a time, or the next to be given out: frames stand in the order of
-- their times, so that a few of them tell.
create function headwater.topic_offset_at_1(of_topic integer, of_partition integer, low bigint, high bigint, at timestamptz)
    returns bigint
    language plpgsql
    volatile
as $$
declare
    found_last bigint;
    found_count integer;
    found_at timestamptz;
begin
    while low < high loop
        execute format(
            $sql$
            select log.last_offset, log.count, log.created_at
              from headwater.topic_log_%1$s as log
             where log.partition = $1
               and log.last_offset >= $2
             order by log.last_offset
             limit 1
            $sql$, of_topic)
           into found_last, found_count, found_at
          using of_partition, low + (high - low) / 2;
        if found_at < at then
            low := found_last + 1;
        else
            high := found_last - found_count + 1;
        end if;
    end loop;
    return low;
end
$$;

-- When the message of an offset got there; null if it is not there.
create function headwater.topic_time_at_1(of_topic integer, of_partition integer, of_offset bigint) returns timestamptz
    language plpgsql
    volatile
as $$
declare
    found_at timestamptz;
begin
    execute format(
        $sql$
        select log.created_at
          from headwater.topic_log_%1$s as log
         where log.partition = $1
           and log.last_offset >= $2
         order by log.last_offset
         limit 1
        $sql$, of_topic)
       into found_at
      using of_partition, of_offset;
    return found_at;
end
$$;

-- Move cursors, all of them or none: each only by who has its epoch, and with `of_firsts` only from there. Without `waits` it
-- is not waited for the disk: after a crash of the server, messages that were committed just before come again. Without
-- `waits_for_others` a transaction of an application that has moved one of them and goes on is not waited for: it is an error.
create function headwater.topic_settle_1(
    of_group integer,
    of_partitions integer[],
    of_epochs bigint[],
    of_offsets bigint[],
    of_firsts bigint[],
    waits boolean,
    waits_for_others boolean
) returns void
    language plpgsql
as $$
declare
    moved integer;
begin
    if not waits then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if not waits_for_others then
        perform set_config('lock_timeout', '50ms', true);
    end if;
    update headwater.topic_cursor as cursor
       set next_offset = greatest(cursor.next_offset, given.next_offset), attempts = 0, committed_at = clock_timestamp()
      from unnest(of_partitions, of_epochs, of_offsets, of_firsts) as given (partition, epoch, next_offset, first_offset)
     where cursor.group_id = of_group
       and cursor.partition = given.partition
       and cursor.epoch = given.epoch
       and (given.first_offset is null or cursor.next_offset = given.first_offset);
    get diagnostics moved = row_count;
    if moved <> cardinality(of_partitions) then
        raise exception 'the epoch has passed' using errcode = 'HW004';
    end if;
end
$$;

-- The same for claims, which are gone when they are dealt with. With `is_again` one that is gone is no surprise.
create function headwater.topic_settle_claims_1(
    of_group integer,
    of_partitions integer[],
    of_firsts bigint[],
    of_epochs bigint[],
    is_again boolean,
    waits boolean
) returns void
    language plpgsql
as $$
declare
    settled integer;
begin
    if not waits then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    delete from headwater.topic_claim as claim
     using unnest(of_partitions, of_firsts, of_epochs) as given (partition, first_offset, epoch)
     where claim.group_id = of_group
       and claim.partition = given.partition
       and claim.first_offset = given.first_offset
       and claim.epoch = given.epoch;
    get diagnostics settled = row_count;
    if is_again then
        settled := (
            select count(*)
              from unnest(of_partitions, of_firsts) as given (partition, first_offset)
             where not exists (
                   select
                     from headwater.topic_claim as claim
                    where claim.group_id = of_group
                      and claim.partition = given.partition
                      and claim.first_offset = given.first_offset
                   )
        );
    end if;
    if settled <> cardinality(of_partitions) then
        raise exception 'the epoch has passed' using errcode = 'HW004';
    end if;
end
$$;

-- What nobody holds of the claims of a group: their member is gone, or does not know of them, since an answer was lost.
create function headwater.topic_free_claims_1(
    of_group integer,
    of_member uuid,
    known_partitions integer[],
    known_firsts bigint[]
) returns setof headwater.topic_claim
    language sql
    stable
as $$
    select claim.*
      from headwater.topic_claim as claim
     where claim.group_id = of_group
       and case
           when claim.member = of_member then
               (claim.partition, claim.first_offset) not in (
                   select known.partition, known.first_offset
                     from unnest(known_partitions, known_firsts) as known (partition, first_offset)
               )
           else not exists (
               select
                 from headwater.topic_member as holder
                where holder.group_id = of_group
                  and holder.member = claim.member
                  and holder.lease_until > clock_timestamp()
           )
           end
$$;

-- Claim a range for a member of a shared group: one that nobody holds any more, or else the next of a partition, beginning the
-- search at one of them. It has at most so many messages, and ends with the frame in which so many bytes are reached. What was
-- claimed `max_attempts` times is claimed message by message; that one of them was given out is written down by its member.
create function headwater.topic_claim_1(
    of_group integer,
    of_topic integer,
    of_member uuid,
    most integer,
    most_bytes bigint,
    max_attempts integer,
    begin_at integer,
    known_partitions integer[],
    known_firsts bigint[]
) returns table (partition integer, first_offset bigint, last_offset bigint, epoch bigint, attempts integer)
    language plpgsql
as $$
declare
    free headwater.topic_claim;
    old bigint;
    tip bigint;
    has_more boolean;
begin
    for free in
        select *
          from headwater.topic_free_claims_1(of_group, of_member, known_partitions, known_firsts) as one
         order by one.partition, one.first_offset
    loop
        -- Nobody is waited for: neither for a transaction of an application that settles it, nor, with a lock in hand, for one
        -- who has the cursor.
        perform
           from headwater.topic_claim as claim
          where claim.group_id = of_group
            and claim.partition = free.partition
            and claim.first_offset = free.first_offset
            and claim.epoch = free.epoch
            for update skip locked;
        if not found then
            continue;
        end if;
        perform
           from headwater.topic_cursor as cursor
          where cursor.group_id = of_group
            and cursor.partition = free.partition
            for no key update skip locked;
        if not found then
            return;
        end if;
        update headwater.topic_cursor as cursor
           set epoch = cursor.epoch + 1
         where cursor.group_id = of_group
           and cursor.partition = free.partition
        returning cursor.epoch into epoch;
        update headwater.topic_claim as claim
           set member = of_member, epoch = topic_claim_1.epoch,
               attempts = greatest(claim.attempts, least(claim.attempts + 1, max_attempts)),
               last_offset = case when claim.attempts >= max_attempts then claim.first_offset else claim.last_offset end
         where claim.group_id = of_group
           and claim.partition = free.partition
           and claim.first_offset = free.first_offset
        returning claim.partition, claim.first_offset, claim.last_offset, claim.attempts
             into partition, first_offset, last_offset, attempts;
        if last_offset < free.last_offset then
            insert into headwater.topic_claim (group_id, partition, first_offset, last_offset, epoch, member, attempts)
            values (
                of_group, free.partition, free.first_offset + 1, free.last_offset, epoch,
                '00000000-0000-0000-0000-000000000000', max_attempts
            );
        end if;
        return next;
        return;
    end loop;
    for partition, old in
        select cursor.partition, cursor.next_offset
          from headwater.topic_cursor as cursor
         where cursor.group_id = of_group
         order by cursor.partition < begin_at, cursor.partition
    loop
        execute format(
            'select exists (select from headwater.topic_log_%1$s as log where log.partition = $1 and log.last_offset >= $2)',
            of_topic)
           into has_more
          using partition, old;
        if not has_more then
            continue;
        end if;
        -- Locked first: the log is then read by a statement that sees all that is there. One lock only, so that no two wait
        -- for each other: if somebody else was quicker, there is nothing this time.
        select cursor.next_offset into old
          from headwater.topic_cursor as cursor
         where cursor.group_id = of_group
           and cursor.partition = topic_claim_1.partition
           for update;
        execute format(
            $sql$
            select max(sized.last_offset)
              from (
                   select log.last_offset,
                          sum(octet_length(log.frame)) over (order by log.last_offset) - octet_length(log.frame) as before
                     from (
                          select one.last_offset, one.frame
                            from headwater.topic_log_%1$s as one
                           where one.partition = $1
                             and one.last_offset >= $2
                           order by one.last_offset
                           limit $3
                     ) as log
              ) as sized
             where sized.before < $4
            $sql$, of_topic)
           into tip
          using partition, old, most, most_bytes;
        if tip is null then
            return;
        end if;
        first_offset := old;
        last_offset := least(tip, old + most - 1);
        attempts := 1;
        update headwater.topic_cursor as cursor
           set next_offset = topic_claim_1.last_offset + 1, epoch = cursor.epoch + 1, committed_at = clock_timestamp()
         where cursor.group_id = of_group
           and cursor.partition = topic_claim_1.partition
        returning cursor.epoch into epoch;
        insert into headwater.topic_claim (group_id, partition, first_offset, last_offset, epoch, member, attempts)
        values (of_group, partition, first_offset, last_offset, epoch, of_member, attempts);
        return next;
        return;
    end loop;
end
$$;

-- How far each group is. What has no offset yet is not counted.
create view headwater.topic_lag as
    select topic.name as topic, reader.name as group_name, reader.mode, reader.is_paused, cursor.partition, cursor.next_offset,
           bounds.next_offset as tip, claims.claimed, bounds.next_offset - cursor.next_offset + claims.claimed as lag,
           clock_timestamp() - headwater.topic_time_at_1(
               topic.id, cursor.partition, coalesce(claims.first_offset, cursor.next_offset)
           ) as oldest_age,
           cursor.member, cursor.epoch, cursor.committed_at
      from headwater.topic
     cross join lateral headwater.topic_bounds_1(topic.id) as bounds
      join headwater.topic_group as reader on reader.topic_id = topic.id
      join headwater.topic_cursor as cursor on cursor.group_id = reader.id and cursor.partition = bounds.partition
     cross join lateral (
           select coalesce(sum(claim.last_offset - claim.first_offset + 1), 0)::bigint as claimed,
                  min(claim.first_offset) as first_offset
             from headwater.topic_claim as claim
            where claim.group_id = reader.id
              and claim.partition = cursor.partition
           ) as claims;
