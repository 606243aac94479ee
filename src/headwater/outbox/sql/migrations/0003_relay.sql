-- What a relay of the table needs, that runs inside of an application. Running pipelines and writers of an earlier release go
-- on as they are; but while the indexes are built, which takes a second for some hundred thousand rows, writers wait.

-- What is to be relayed, in the order of writing. Only rows that wait are in it, so that it stays small.
create index outbox_message_pending on headwater.outbox_message (created_at, id) where status = 'pending';

-- What is to be tried later, by the key that waits for it.
create index outbox_message_postponed on headwater.outbox_message (key, next_attempt_at)
 where status = 'pending' and next_attempt_at is not null;

-- What could not be delivered, which is little, and stays until somebody deals with it.
create index outbox_message_dead on headwater.outbox_message (created_at, id) where status = 'dead';

-- At most one row: the outbox is served by relays inside of processes, and no pipeline may deliver it a second time.
create table headwater.outbox_served (
    is_only boolean primary key default true check (is_only),
    by_process_since timestamptz not null default now(),
    lanes integer not null check (lanes >= 0)
);

comment on table headwater.outbox_served is 'Has a row when relays inside of processes deliver the outbox; `headwater outbox release` removes it.';
comment on column headwater.outbox_served.lanes is 'How many lanes keep the order of keys; 0 where no order is kept.';

-- Who sends the messages of a lane, for relays that keep the order of keys.
create table headwater.outbox_lane (
    lane integer primary key,
    owner text,
    until timestamptz,
    epoch bigint not null default 0
);

comment on column headwater.outbox_lane.epoch is 'Raised whenever the lane goes to another owner.';

-- Who is there to share the lanes with.
create table headwater.outbox_instance (
    instance text primary key,
    until timestamptz not null
);
