-- name: insert_leased
-- An event that its writer hands to the relay after the commit: nobody else may send it until the lease ends. Without a lease
-- any relay takes it. Times travel as microseconds: they are exact, and no setting of the session changes how they look.
insert into headwater.outbox_message (id, topic, type, key, payload, headers, locked_by, locked_until)
values (
           %(id)s::uuid, %(topic)s::text, %(type)s::text, %(key)s::text, %(payload)s::text::json, %(headers)s::text::json,
           %(locked_by)s::text, pg_catalog.clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second'
       )
returning (extract(epoch from created_at) * 1000000)::bigint;

-- name: insert_leased_and_commit
-- The same at the end of its transaction, in one round trip with the commit; for parameters that are bound by the client.
insert into headwater.outbox_message (id, topic, type, key, payload, headers, locked_by, locked_until)
values (
           %(id)s::uuid, %(topic)s::text, %(type)s::text, %(key)s::text, %(payload)s::text::json, %(headers)s::text::json,
           %(locked_by)s::text, pg_catalog.clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second'
       )
returning (extract(epoch from created_at) * 1000000)::bigint;
commit;

-- name: insert_leased_many
-- As above, in the order given, which is that of the result too.
insert into headwater.outbox_message (id, topic, type, key, payload, headers, locked_by, locked_until)
select given.id, given.topic, given.type, given.key, given.payload::json, given.headers::json,
       %(locked_by)s::text, pg_catalog.clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second'
  from unnest(
           %(ids)b::uuid[], %(topics)b::text[], %(types)b::text[], %(keys)b::text[], %(payloads)b::text[], %(headers)b::text[]
       ) with ordinality as given (id, topic, type, key, payload, headers, place)
 order by given.place
returning (extract(epoch from created_at) * 1000000)::bigint;

-- name: claim_due
-- Take the oldest messages that nobody holds and whose time has come, after a key; those that others are about to take are
-- skipped, so that no two relays have the same.
with due as materialized (
    select message.created_at, message.id
      from headwater.outbox_message as message
     where message.status = 'pending'
       and (message.locked_until is null or message.locked_until < pg_catalog.clock_timestamp())
       and (message.next_attempt_at is null or message.next_attempt_at <= pg_catalog.clock_timestamp())
       and message.created_at >= timestamptz 'epoch' + %(after_us)s::bigint * interval '1 microsecond'
       and (message.created_at, message.id)
           > (timestamptz 'epoch' + %(after_us)s::bigint * interval '1 microsecond', %(after_id)s::uuid)
     order by message.created_at, message.id
     limit %(limit)s
       for update skip locked
)
update headwater.outbox_message as message
   set locked_by = %(instance)s,
       locked_until = pg_catalog.clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second'
  from due
 where message.created_at = due.created_at
   and message.id = due.id
returning message.id::text as id,
          (extract(epoch from message.created_at) * 1000000)::bigint as created_us,
          message.topic,
          message.type,
          message.key,
          message.payload::text as payload,
          message.headers::text as headers,
          message.attempts;

-- name: save_published
-- Also what somebody else has claimed since: it is at the broker. What was published already is left as it is, and so
-- missing in the count. The bounds are for the choice of partitions.
update headwater.outbox_message as message
   set status = 'published',
       attempts = message.attempts + given.attempts,
       published_at = pg_catalog.clock_timestamp(),
       next_attempt_at = null,
       locked_by = null,
       locked_until = null,
       error = null
  from (
       select one.id, timestamptz 'epoch' + one.created_us * interval '1 microsecond' as created_at, one.attempts
         from unnest(%(ids)b::text[]::uuid[], %(created_us)b::bigint[], %(attempts)b::integer[])
              as one (id, created_us, attempts)
  ) as given
 where message.created_at = given.created_at
   and message.id = given.id
   and message.created_at >= timestamptz 'epoch' + %(first_us)s::bigint * interval '1 microsecond'
   and message.created_at <= timestamptz 'epoch' + %(last_us)s::bigint * interval '1 microsecond'
   and message.status <> 'published';

-- name: save_unpublished
-- What was not sent, or not taken: to be tried again now or later, or dead. Only what this instance still holds; without an
-- instance whatever it is, for the owner of a lane.
update headwater.outbox_message as message
   set status = given.status,
       attempts = message.attempts + given.attempts,
       next_attempt_at = pg_catalog.clock_timestamp() + given.wait_seconds * interval '1 second',
       locked_by = null,
       locked_until = null,
       error = coalesce(given.error, message.error)
  from (
       select one.id, timestamptz 'epoch' + one.created_us * interval '1 microsecond' as created_at,
              one.status, one.attempts, one.wait_seconds, one.error
         from unnest(
                  %(ids)b::text[]::uuid[], %(created_us)b::bigint[], %(statuses)b::text[], %(attempts)b::integer[],
                  %(waits)b::float8[], %(errors)b::text[]
              ) as one (id, created_us, status, attempts, wait_seconds, error)
  ) as given
 where message.created_at = given.created_at
   and message.id = given.id
   and message.created_at >= timestamptz 'epoch' + %(first_us)s::bigint * interval '1 microsecond'
   and message.created_at <= timestamptz 'epoch' + %(last_us)s::bigint * interval '1 microsecond'
   and message.status = 'pending'
   and (%(instance)s::text is null or message.locked_by = %(instance)s::text);

-- name: measure_age
-- How long ago the oldest message was written that is not published and not dead.
select extract(epoch from pg_catalog.clock_timestamp() - message.created_at)::float8
  from headwater.outbox_message as message
 where message.status = 'pending'
 order by message.created_at, message.id
 limit 1;

-- name: relay_state
-- Published messages are not counted: that would read the whole table.
select (select count(*) from headwater.outbox_message where status = 'pending') as pending,
       (
           select count(*)
             from headwater.outbox_message
            where status = 'pending'
              and locked_until >= pg_catalog.clock_timestamp()
       ) as leased,
       (
           select count(*)
             from headwater.outbox_message
            where status = 'pending'
              and (attempts > 0 or next_attempt_at is not null)
       ) as postponed,
       (select count(*) from headwater.outbox_message where status = 'dead') as dead,
       (
           select pg_catalog.clock_timestamp() - created_at
             from headwater.outbox_message
            where status = 'pending'
            order by created_at, id
            limit 1
       ) as oldest_age,
       (select by_process_since from headwater.outbox_served) as served_since,
       (select lanes from headwater.outbox_served) as lanes;

-- name: find_failure
-- The newest message that failed and is not published, by the index of each state.
select failed.created_at, failed.topic, failed.status, failed.attempts, failed.error
  from (
       (
           select created_at, id, topic, status, attempts, error
             from headwater.outbox_message
            where status = 'pending'
              and error is not null
            order by created_at desc, id desc
            limit 1
       )
       union all
       (
           select created_at, id, topic, status, attempts, error
             from headwater.outbox_message
            where status = 'dead'
              and error is not null
            order by created_at desc, id desc
            limit 1
       )
  ) as failed
 order by failed.created_at desc, failed.id desc
 limit 1;

-- name: list_dead
-- The oldest first, after a key.
select message.id, message.created_at, message.topic, message.type, message.key, message.attempts, message.error
  from headwater.outbox_message as message
 where message.status = 'dead'
   and (
       %(after_at)s::timestamptz is null
       or (message.created_at, message.id) > (%(after_at)s::timestamptz, %(after_id)s::uuid)
   )
 order by message.created_at, message.id
 limit %(limit)s;

-- name: revive_dead
-- To be sent again as if for the first time; some of them, or all.
update headwater.outbox_message
   set status = 'pending',
       attempts = 0,
       next_attempt_at = null,
       locked_by = null,
       locked_until = null
 where status = 'dead'
   and (%(ids)s::uuid[] is null or id = any(%(ids)s::uuid[]));

-- name: lock_serving
-- Who begins to serve the outbox is alone with it until the transaction ends, so that no two kinds begin at once.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('headwater outbox served', 0))::text;

-- name: list_pipelines
-- The pipelines that deliver Headwater's own outbox.
select pipeline from headwater.outbox_checkpoint where table_name = 'headwater.outbox_message' order by pipeline;

-- name: identify_database
-- The server's identity, which its copies keep when one takes over from another, and the database's on it. For any role.
select control.system_identifier || '/' || database.oid
  from pg_catalog.pg_control_system() as control
 cross join pg_catalog.pg_database as database
 where database.datname = pg_catalog.current_database();

-- name: find_served
select by_process_since as since, lanes from headwater.outbox_served;

-- name: set_served
insert into headwater.outbox_served (lanes) values (%(lanes)s);

-- name: exclude_relays
-- Wait until no relay is connected, and let none connect until the transaction ends; for so long as lock_timeout says.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('headwater outbox relays', 0))::text;

-- name: limit_waiting
select pg_catalog.set_config('lock_timeout', %(milliseconds)s::text, true);

-- name: list_relays
-- The server's processes of the connections that relays of the table have.
select lock.pid
  from pg_catalog.pg_locks as lock
 where lock.locktype = 'advisory'
   and lock.granted
   and lock.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
   and lock.objsubid = 1
   and (lock.classid::bigint << 32 | lock.objid::bigint) = pg_catalog.hashtextextended('headwater outbox relays', 0)
 order by lock.pid;

-- name: clear_served
delete from headwater.outbox_served;

-- name: make_lanes
insert into headwater.outbox_lane (lane)
select number from generate_series(0, %(lanes)s::integer - 1) as number
    on conflict (lane) do nothing;

-- name: remove_lanes
delete from headwater.outbox_lane;

-- name: keep_lanes
-- Say that an instance is there, renew its lanes, and take those that nobody has until it has its share. All of it is one
-- row for each lane, whether or not it is the instance's. Whoever else does this at the same time waits a moment.
with present as (
    insert into headwater.outbox_instance (instance, until)
    values (%(instance)s, pg_catalog.clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second')
        on conflict (instance) do update set until = excluded.until
), gone as (
    delete from headwater.outbox_instance
     where until < pg_catalog.clock_timestamp()
       and instance <> %(instance)s
), others as (
    select count(*) as instances
      from headwater.outbox_instance
     where until >= pg_catalog.clock_timestamp()
       and instance <> %(instance)s
), locked as materialized (
    select lane.lane, coalesce(lane.owner = %(instance)s, false) as is_mine
      from headwater.outbox_lane as lane
     where lane.owner is null
        or lane.owner = %(instance)s
        or lane.until < pg_catalog.clock_timestamp()
     order by lane.lane
       for update
), share as (
    select pg_catalog.ceil((select count(*) from headwater.outbox_lane)::numeric / (others.instances + 1))::integer as lanes
      from others
), ranked as (
    select locked.lane, locked.is_mine, row_number() over (order by locked.is_mine desc, locked.lane) as place
      from locked
), kept as (
    update headwater.outbox_lane as lane
       set owner = %(instance)s,
           until = pg_catalog.clock_timestamp() + %(lease_seconds)s::float8 * interval '1 second',
           epoch = lane.epoch + (not ranked.is_mine)::integer
      from ranked
     cross join share
     where lane.lane = ranked.lane
       and (ranked.is_mine or ranked.place <= share.lanes)
    returning lane.lane, lane.epoch
)
select coalesce((select array_agg(kept.lane order by kept.lane) from kept), array[]::integer[]) as lanes,
       coalesce((select array_agg(kept.epoch order by kept.lane) from kept), array[]::bigint[]) as epochs,
       share.lanes as share
  from share;

-- name: give_up_lanes
update headwater.outbox_lane
   set owner = null,
       until = null
 where owner = %(instance)s
   and lane = any(%(lanes)s::integer[]);

-- name: leave_lanes
-- The instance is gone.
with gone as (
    delete from headwater.outbox_instance where instance = %(instance)s
)
update headwater.outbox_lane
   set owner = null,
       until = null
 where owner = %(instance)s;

-- name: read_lanes
-- What is to be sent in some lanes, in the order of writing. What has no key is spread by its id. One that is to be tried later
-- holds up those of its key that were written after it. All of it by one time, or it could be late for itself and not for them;
-- and keys are looked at only if there is such a one at all.
select message.id::text as id,
       (extract(epoch from message.created_at) * 1000000)::bigint as created_us,
       message.topic,
       message.type,
       message.key,
       message.payload::text as payload,
       message.headers::text as headers,
       message.attempts
  from headwater.outbox_message as message
 where message.status = 'pending'
   and (
           (pg_catalog.hashtextextended(coalesce(message.key, message.id::text), 0) & 9223372036854775807)
           %% %(count)s::bigint
       ) = any(%(lanes)s::bigint[])
   and (message.next_attempt_at is null or message.next_attempt_at <= pg_catalog.statement_timestamp())
   and (
           not (
               select exists (
                   select
                     from headwater.outbox_message as later
                    where later.status = 'pending'
                      and later.next_attempt_at > pg_catalog.statement_timestamp()
               )
           )
           or not exists (
               select
                 from headwater.outbox_message as later
                where later.status = 'pending'
                  and later.next_attempt_at > pg_catalog.statement_timestamp()
                  and later.key = message.key
                  and later.created_at <= message.created_at
                  and (later.created_at, later.id) < (message.created_at, message.id)
           )
       )
 order by message.created_at, message.id
 limit %(limit)s;

-- name: skip_existing
-- What is there when the first relay begins, and is not wanted.
update headwater.outbox_message
   set status = 'published',
       published_at = pg_catalog.clock_timestamp(),
       error = 'skipped: it was there before the first relay'
 where status = 'pending';

-- name: prepare_session
-- For the connections of the relay: a standby that commits wait for must not hold them up. And rows are found by their keys,
-- whatever the statistics say: to take the first thousand of a million that wait, a planner that knows better reads and sorts
-- all of them. As long as one of them is open, no `release` says that no relay is there.
select pg_catalog.pg_advisory_lock_shared(pg_catalog.hashtextextended('headwater outbox relays', 0))::text,
       pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
       pg_catalog.set_config('synchronous_commit', 'local', false),
       pg_catalog.set_config('enable_seqscan', 'off', false),
       pg_catalog.set_config('enable_bitmapscan', 'off', false),
       pg_catalog.set_config('enable_sort', 'off', false),
       pg_catalog.set_config('enable_hashjoin', 'off', false),
       pg_catalog.set_config('enable_mergejoin', 'off', false);

-- name: grant_relaying
-- What an application needs that relays its own events: to write them leased, to claim and to settle them.
grant usage on schema headwater to {role};
grant execute on function headwater.uuid_v7() to {role};
grant select, update, insert (id, topic, type, key, payload, headers, locked_by, locked_until)
   on headwater.outbox_message to {role};
grant select on headwater.migration, headwater.outbox_checkpoint, headwater.outbox_delivered to {role};
grant select, insert, update, delete
   on headwater.outbox_served, headwater.outbox_lane, headwater.outbox_instance
   to {role};
