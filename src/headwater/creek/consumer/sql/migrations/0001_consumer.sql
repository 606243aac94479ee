-- The Creek consumer's own tables and functions, in the target database. Those of a creek-pg-client that was here before are
-- taken over with what they hold; it must not run any more.
create table if not exists headwater.subscriptions (
    topic text not null,
    target text primary key,
    lsn pg_lsn,
    "timestamp" timestamptz,
    active boolean not null default true
);

alter table headwater.subscriptions
    add column if not exists stream text,
    add column if not exists identity text,
    add column if not exists sequence bigint,
    add column if not exists begun bigint,
    add column if not exists generation bigint not null default 1,
    add column if not exists is_behind boolean not null default true,
    add column if not exists snapshot text,
    add column if not exists until_lsn pg_lsn,
    add column if not exists skip_lsn pg_lsn,
    add column if not exists error text;

comment on table headwater.subscriptions is 'Which table of which database (topic) is kept in which table here (target), and how far it is; written in the transaction of the rows.';
comment on column headwater.subscriptions.lsn is 'The commit position, at the source, of the last change that is in the target.';
comment on column headwater.subscriptions.sequence is 'All messages of the stream up to here are applied; of one that is not behind, up to that of the stream if it is larger.';
comment on column headwater.subscriptions.begun is 'Where the message begins that has begun before that sequence and ends behind it, if there is one.';
comment on column headwater.subscriptions.identity is 'When the stream was made: numbers of another stream of the same name mean nothing.';
comment on column headwater.subscriptions.generation is 'Another one each time that the table begins anew: it was added, removed, or loaded from a snapshot.';
comment on column headwater.subscriptions.is_behind is 'Whether the table is read by itself until it has come to where the others are.';
comment on column headwater.subscriptions.snapshot is 'The transactions that the rows of a snapshot hold, so that their messages are skipped if they committed before until_lsn.';
comment on column headwater.subscriptions.skip_lsn is 'Messages up to this commit position are skipped; for snapshots that do not tell which transactions they hold.';

create table if not exists headwater._notification_log (
    "timestamp" timestamptz primary key default now(),
    command text,
    status text
);

create table headwater.streams (
    stream text primary key,
    identity text not null,
    sequence bigint not null,
    begun jsonb not null default '{}',
    updated_at timestamptz not null
);

comment on column headwater.streams.begun is 'By topic, where messages begin that end behind the sequence.';
comment on table headwater.streams is 'How far each stream is read: all subscriptions that are not behind have what lies before.';

create table headwater.requests (
    id bigint generated always as identity primary key,
    kind text not null check (kind in ('create', 'snapshot', 'apply')),
    topic text not null,
    target text not null,
    mode text not null check (mode in ('upsert', 'clean')),
    name text,
    command text not null,
    state text not null default 'waiting' check (state in ('waiting', 'running', 'done', 'failed')),
    requested_at timestamptz not null default now(),
    started_at timestamptz,
    ended_at timestamptz,
    error text
);

create index requests_waiting on headwater.requests (id) where state in ('waiting', 'running');

comment on table headwater.requests is 'What was asked for by SQL, and what became of it; one that nobody was there for is done when somebody is.';

-- Those of a creek-pg-client, whose parameters may have other names.
drop function if exists headwater.add_table(text);
drop function if exists headwater.remove_table(text);
drop function if exists headwater.create_schema(text);
drop function if exists headwater.snapshot(text, text);
drop function if exists headwater.apply_snapshot(text, text, text);

-- A name as it is written: with quotes only if it has something in it that would part it, or blanks at an end.
create function headwater.written_name(name text) returns text
    language sql immutable strict
    as $$
select case
           when name ~ '[.:"]' or name <> btrim(name, E' \t\r\n') then '"' || replace(name, '"', '""') || '"'
           else name
       end
$$;

-- The names of `database.schema.table[:schema.table]`; five of them. Unquoted letters stay as they are, as in subjects.
create function headwater.parse_mapping(mapping text) returns text[]
    language plpgsql immutable strict
    as $$
declare
    one constant text := '("(?:[^"]|"")+"|[^".:]+)';
    found text[] := regexp_match(btrim(mapping), '^' || one || '\.' || one || '\.' || one || '(?::' || one || '\.' || one || ')?$');
begin
    if found is null then
        raise exception '% is no mapping of a table', mapping
            using hint = 'Write it as database.schema.table:target_schema.target_table; a name with a dot or a colon in quotes.';
    end if;
    found[4] := coalesce(found[4], found[2]);
    found[5] := coalesce(found[5], found[3]);
    return array(
        select case when part like '"%"' then replace(substr(part, 2, length(part) - 2), '""', '"') else btrim(part) end
          from unnest(found) with ordinality as parts (part, place)
         order by place
    );
end
$$;

create function headwater.topic_of(names text[]) returns text
    language sql immutable strict
    as $$
select headwater.written_name(names[1]) || '.' || headwater.written_name(names[2]) || '.' || headwater.written_name(names[3])
$$;

create function headwater.target_of(names text[]) returns text
    language sql immutable strict
    as $$ select headwater.written_name(names[4]) || '.' || headwater.written_name(names[5]) $$;

create function headwater.log_notification(command text, status text) returns void
    language sql
    as $$
insert into headwater._notification_log ("timestamp", command, status)
select clock_timestamp(), command, status
    on conflict ("timestamp") do update set command = excluded.command, status = excluded.status
$$;

create function headwater.add_table(_table text) returns void
    language plpgsql
    as $$
declare
    names text[] := headwater.parse_mapping(_table);
begin
    insert into headwater.subscriptions as known (topic, target, active)
    values (headwater.topic_of(names), headwater.target_of(names), true)
    on conflict (target) do update
       set topic = excluded.topic,
           active = true,
           generation = known.generation + case when known.active and known.topic = excluded.topic then 0 else 1 end,
           is_behind = known.is_behind or not known.active or known.topic <> excluded.topic,
           -- Of another table nothing is known; the same one goes on where it was.
           lsn = case when known.topic = excluded.topic then known.lsn end,
           "timestamp" = case when known.topic = excluded.topic then known."timestamp" end,
           stream = case when known.topic = excluded.topic then known.stream end,
           identity = case when known.topic = excluded.topic then known.identity end,
           sequence = case when known.topic = excluded.topic then known.sequence end,
           begun = case when known.topic = excluded.topic then known.begun end,
           snapshot = case when known.topic = excluded.topic then known.snapshot end,
           until_lsn = case when known.topic = excluded.topic then known.until_lsn end,
           skip_lsn = case when known.topic = excluded.topic then known.skip_lsn end,
           error = null;
    perform headwater.log_notification('ADD ' || _table, 'ok');
    perform pg_notify('creek_consumer', 'ADD ' || _table);
end
$$;

create function headwater.remove_table(_table text) returns void
    language plpgsql
    as $$
declare
    names text[] := headwater.parse_mapping(_table);
    found headwater.subscriptions;
    read headwater.streams;
begin
    select known.*
      into found
      from headwater.subscriptions as known
     where known.topic = headwater.topic_of(names)
       and known.target = headwater.target_of(names)
       for update;
    if found.target is null then
        raise exception 'table % is not subscribed to', _table
            using hint = 'select topic, target from _creek_consumer.subscriptions lists what is.';
    end if;
    if not found.active then
        return;
    end if;
    select one.* into read from headwater.streams as one where one.stream = found.stream and one.identity = found.identity;
    if not found.is_behind and read.sequence > found.sequence then
        -- The stream moves on without it from now on, so that how far it was has to be written down.
        found.sequence := read.sequence;
        found.begun := (read.begun ->> found.topic)::bigint;
    end if;
    update headwater.subscriptions as known
       set active = false,
           generation = known.generation + 1,
           is_behind = true,
           sequence = found.sequence,
           begun = found.begun
     where known.target = found.target;
    perform headwater.log_notification('REMOVE ' || _table, 'ok');
    perform pg_notify('creek_consumer', 'REMOVE ' || _table);
end
$$;

create function headwater.ask(kind text, mapping text, mode text, name text, command text) returns void
    language plpgsql
    as $$
declare
    names text[] := headwater.parse_mapping(mapping);
begin
    if mode is null or mode not in ('upsert', 'clean') then
        raise exception 'mode % is not known', mode using hint = 'There are upsert and clean.';
    end if;
    insert into headwater.requests (kind, topic, target, mode, name, command)
    values (kind, headwater.topic_of(names), headwater.target_of(names), mode, name, command);
    perform pg_notify('creek_consumer', command);
end
$$;

create function headwater.create_schema(_table text) returns void
    language sql
    as $$ select headwater.ask('create', _table, 'upsert', null, 'CREATE ' || _table) $$;

create function headwater.snapshot(_table text, mode text) returns void
    language sql
    as $$ select headwater.ask('snapshot', _table, mode, null, 'SNAP ' || mode || ' ' || _table) $$;

create function headwater.apply_snapshot(topic text, _table text, mode text) returns void
    language sql
    as $$ select headwater.ask('apply', _table, mode, topic, 'APPLY_SNAP ' || mode || ' ' || topic || ' ' || _table) $$;

comment on function headwater.add_table is 'Subscribes to a table, database.schema.table:target_schema.target_table: its changes are applied from where it was, or from the beginning of the stream.';
comment on function headwater.remove_table is 'Ends a subscription, for good; what the target has stays.';
comment on function headwater.create_schema is 'Makes the target table, if it is missing, from the last schema that was published.';
comment on function headwater.snapshot is 'Has a snapshot of a table taken and loaded: mode clean leaves no other rows, upsert keeps those that the source does not have.';
comment on function headwater.apply_snapshot is 'Loads a snapshot that was taken before, by its topic.';
