-- name: save_letters
-- Keep changes that a sink could not take; those that are kept already stay as they are. The keys come as JSON texts.
insert into headwater.dead_letter (
       pipeline, sink, event_id, schema_name, table_name, op, commit_lsn, ordinal, xid, committed_at,
       key, new_key, reason, relation, message, envelope, own_types
)
select letter.pipeline, letter.sink, letter.event_id, letter.schema_name, letter.table_name, letter.op,
       letter.commit_lsn, letter.ordinal, letter.xid, letter.committed_at,
       letter.key::json, letter.new_key::json, letter.reason, letter.relation, letter.message,
       letter.envelope::json, letter.own_types::json
  from unnest(
           %(pipeline)s::text[], %(sink)s::text[], %(event_id)s::text[], %(schema_name)s::text[], %(table_name)s::text[],
           %(op)s::text[], %(commit_lsn)s::pg_lsn[], %(ordinal)s::integer[], %(xid)s::bigint[],
           %(committed_at)s::timestamptz[], %(key)s::text[], %(new_key)s::text[], %(reason)s::text[],
           %(relation)s::bytea[], %(message)s::bytea[], %(envelope)s::text[], %(own_types)s::text[]
       ) as letter(
           pipeline, sink, event_id, schema_name, table_name,
           op, commit_lsn, ordinal, xid,
           committed_at, key, new_key, reason,
           relation, message, envelope, own_types
       )
    on conflict (pipeline, sink, event_id) do nothing
returning id;

-- name: list_open
-- What a sink looks at to tell whether a later change makes a letter pointless.
select letter.id, letter.schema_name as schema, letter.table_name as "table", letter.key, letter.new_key,
       letter.commit_lsn, letter.ordinal, letter.op, letter.event_id
  from headwater.dead_letter as letter
 where letter.pipeline = %(pipeline)s and letter.sink = %(sink)s and letter.state = 'open'
 order by letter.commit_lsn, letter.ordinal;

-- name: supersede
-- Letters that must not be replayed any more. Waits for a replay that is under way.
update headwater.dead_letter
   set state = 'superseded'
 where id = any(%(ids)s) and state = 'open'
returning id;

-- name: list_earlier
-- The open letters of the same row that are older than a letter; a change of a key concerns the rows of both keys.
select earlier.id
  from headwater.dead_letter as letter
  join headwater.dead_letter as earlier
    on (earlier.pipeline, earlier.sink, earlier.schema_name, earlier.table_name)
     = (letter.pipeline, letter.sink, letter.schema_name, letter.table_name)
 where letter.id = %(id)s
   and earlier.state = 'open'
   and (earlier.commit_lsn, earlier.ordinal) < (letter.commit_lsn, letter.ordinal)
   and array[earlier.key::jsonb, earlier.new_key::jsonb]
    && array_remove(array[letter.key::jsonb, letter.new_key::jsonb], null)
 order by earlier.commit_lsn, earlier.ordinal;

-- name: list_letters
-- Letters without their rows, in the order of the stream; a filter that is NULL lets all pass.
select letter.id, letter.state, letter.created_at, letter.pipeline, letter.sink, letter.event_id,
       letter.schema_name as schema, letter.table_name as "table", letter.op,
       letter.commit_lsn, letter.ordinal, letter.committed_at, letter.key, letter.reason
  from headwater.dead_letter as letter
 where letter.pipeline = coalesce(%(pipeline)s, letter.pipeline)
   and letter.sink = coalesce(%(sink)s, letter.sink)
   and letter.state = coalesce(%(state)s, letter.state)
   and (%(table)s::text is null
        or %(table)s in (letter.table_name, letter.schema_name || '.' || letter.table_name))
 order by letter.pipeline, letter.sink, letter.commit_lsn, letter.ordinal;

-- name: find_letter
-- A letter with all that it carries.
select letter.id, letter.state, letter.created_at, letter.pipeline, letter.sink, letter.event_id,
       letter.schema_name as schema, letter.table_name as "table", letter.op,
       letter.commit_lsn, letter.ordinal, letter.xid, letter.committed_at, letter.key, letter.new_key,
       letter.reason, letter.relation, letter.message, letter.envelope, letter.own_types
  from headwater.dead_letter as letter
 where letter.id = %(id)s;

-- name: lock_letter
-- Hold a letter until the transaction ends: no sink can supersede it meanwhile, and nobody else replays it.
select letter.id
  from headwater.dead_letter as letter
 where letter.id = %(id)s
   for update;

-- name: mark_replayed
-- The change was delivered after all.
update headwater.dead_letter
   set state = 'replayed'
 where id = %(id)s
returning id;

-- name: drop_letters
-- Forget letters for good.
delete from headwater.dead_letter
 where id = any(%(ids)s)
returning id;
