-- name: list_tables
-- What a pipeline knows of its tables; `is_due` if one that is wanted may be tried now.
select schema_name as schema,
       table_name as name,
       state,
       is_added,
       request,
       retry_at <= now() as is_due,
       error,
       snapshot,
       until_lsn,
       attempt,
       pieces_done,
       pieces_total,
       rows_estimate,
       table_oid,
       reason
  from headwater.pipeline_table
 where pipeline = %(pipeline)s
 order by schema_name, table_name;

-- name: enlist
-- Tables that a pipeline begins with, or has found since; what is known of a table stays.
insert into headwater.pipeline_table (pipeline, schema_name, table_name, state, reason)
select %(pipeline)s, found.schema_name, found.table_name, %(state)s, %(reason)s
  from unnest(%(schemas)s::text[], %(names)s::text[]) as found (schema_name, table_name)
    on conflict (pipeline, schema_name, table_name) do nothing;

-- name: add_table
select headwater.add_table(%(pipeline)s, format('%%I.%%I', %(schema)s::text, %(name)s::text));

-- name: remove_table
select headwater.remove_table(%(pipeline)s, format('%%I.%%I', %(schema)s::text, %(name)s::text));

-- name: leave_table
-- A table is not followed any more, for a reason other than that the user has taken it out of the pipeline.
select headwater.ask_for_table(%(pipeline)s, format('%%I.%%I', %(schema)s::text, %(name)s::text), 'left', false, %(reason)s);

-- name: request_load
-- A table is to be read as a whole, for the reason given; not one that was taken out.
select headwater.request_load(%(pipeline)s, %(schema)s, %(name)s, %(reason)s);

-- name: request_all
-- Every table that the pipeline follows is to be read as a whole again.
update headwater.pipeline_table
   set state = 'wanted',
       reason = %(reason)s,
       request = request + 1,
       requested_at = now(),
       retry_at = now(),
       error = null,
       snapshot = null,
       until_lsn = null
 where pipeline = %(pipeline)s
   and state <> 'left';

-- name: find_slot
select slot, generation, system_identifier, since, confirmed
  from headwater.pipeline_slot
 where pipeline = %(pipeline)s;

-- name: save_slot
insert into headwater.pipeline_slot as known (pipeline, slot, generation, system_identifier, since, confirmed)
values (%(pipeline)s, %(slot)s, %(generation)s, %(system_identifier)s, %(since)s, %(since)s)
    on conflict (pipeline) do update
   set slot = excluded.slot,
       generation = excluded.generation,
       system_identifier = excluded.system_identifier,
       since = excluded.since,
       confirmed = excluded.confirmed;

-- name: save_confirmed
-- Said before it is confirmed, so that the slot is never further than this unless somebody else has moved it.
update headwater.pipeline_slot
   set confirmed = greatest(confirmed, %(confirmed)s)
 where pipeline = %(pipeline)s
   and generation = %(generation)s;

-- name: save_progress
-- How far an attempt is with its tables.
update headwater.pipeline_table
   set attempt = %(attempt)s,
       pieces_done = found.done,
       pieces_total = found.total,
       rows_estimate = found.rows_estimate,
       error = null
  from unnest(%(schemas)s::text[], %(names)s::text[], %(done)s::int[], %(totals)s::int[], %(estimates)s::bigint[])
       as found (schema_name, table_name, done, total, rows_estimate)
 where pipeline_table.pipeline = %(pipeline)s
   and pipeline_table.schema_name = found.schema_name
   and pipeline_table.table_name = found.table_name;

-- name: save_loaded
-- Tables whose rows have been delivered; one that was asked for again meanwhile stays wanted.
update headwater.pipeline_table
   set state = case when pipeline_table.request = found.request and state = 'wanted' then 'streaming' else state end,
       attempt = %(attempt)s,
       pieces_done = pieces_total,
       snapshot = %(snapshot)s,
       until_lsn = %(until_lsn)s,
       table_oid = coalesce(found.table_oid, pipeline_table.table_oid),
       loaded_at = now(),
       error = null
  from unnest(%(schemas)s::text[], %(names)s::text[], %(requests)s::bigint[], %(oids)s::oid[])
       as found (schema_name, table_name, request, table_oid)
 where pipeline_table.pipeline = %(pipeline)s
   and pipeline_table.schema_name = found.schema_name
   and pipeline_table.table_name = found.table_name;

-- name: save_error
-- A table that could not be read: why, and when to try again.
update headwater.pipeline_table
   set error = %(error)s,
       retry_at = now() + %(wait)s
 where pipeline = %(pipeline)s
   and schema_name = %(schema)s
   and table_name = %(name)s;
