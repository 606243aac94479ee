-- name: note_attempts
-- Attempts as one commit. Those that are there already were written before their answer was lost.
insert into headwater.email_attempt (
    id, job_id, attempt, at, took, sender, outcome, code, response, message_id, accepted, refused
)
select given.id, given.job_id, given.attempt, given.at, given.took_seconds * interval '1 second', given.sender, given.outcome,
       given.code, given.response, given.message_id, given.accepted, given.refused
  from jsonb_to_recordset(%(attempts)s::jsonb) as given (
           id uuid, job_id bigint, attempt integer, at timestamptz, took_seconds double precision, sender text, outcome text,
           code integer, response text, message_id text, accepted text[], refused jsonb
       )
    on conflict (id) do nothing
returning job_id;

-- name: find_accepted
-- Who has some messages already, by earlier attempts.
select job_id, accepted
  from headwater.email_attempt
 where job_id = any(%(job_ids)s::bigint[])
   and accepted <> '{}';

-- name: list_attempts
-- What was tried for a message, in order.
select attempt, at, extract(epoch from took)::double precision as took_seconds, sender, outcome, code, response, message_id, accepted,
       refused
  from headwater.email_attempt
 where job_id = %(job_id)s
 order by at, attempt;

-- name: find_email
-- A message with its state; jobs of other kinds are none of ours.
select id, queue, state, attempt as attempts, run_at, created_at, finished_at, payload, error
  from headwater.job_state
 where id = %(job_id)s
   and kind = %(kind)s
 order by finished_at nulls first
 limit 1;

-- name: find_requests
-- Which requests some messages came with, of those that are known yet.
select id, payload ->> '_request' as request
  from headwater.job_state
 where id = any(%(job_ids)s::bigint[]);

-- name: answer
-- Whether the database answers.
select true;

-- name: forget_attempts
-- Attempts of long ago.
with old as (
    select id
      from headwater.email_attempt
     where at < now() - %(kept)s::interval
     limit %(most)s
)
delete from headwater.email_attempt as attempt
 using old
 where attempt.id = old.id;

-- name: store_contents
-- Attachments that are not there yet; of those that are, it is noted once a day that they are used. In one order, so that two
-- who store the same do not wait for each other for ever.
insert into headwater.email_content (digest, content)
select given.digest, given.content
  from unnest(%(digests)s::text[], %(contents)s::bytea[]) as given (digest, content)
 order by given.digest
    on conflict (digest) do update
   set used_at = excluded.used_at
 where email_content.used_at < excluded.used_at - interval '1 day'
returning digest;

-- name: find_contents
-- Attachments, by their digests.
select digest, content
  from headwater.email_content
 where digest = any(%(digests)s::text[]);

-- name: forget_contents
-- Attachments that nobody has used for long.
with old as (
    select digest
      from headwater.email_content
     where used_at < now() - %(kept)s::interval
     limit %(most)s
)
delete from headwater.email_content as content
 using old
 where content.digest = old.digest
   -- Somebody may have begun to use it meanwhile.
   and content.used_at < now() - %(kept)s::interval;

-- name: grant_submitting
-- What an application needs to hand over messages in its transactions, beside what enqueuing takes.
grant select (digest, used_at), insert (digest, content), update (used_at) on headwater.email_content to {role};

-- name: grant_serving
-- What a service needs that takes messages and sends them, beside what working takes.
grant select, insert, delete on headwater.email_attempt to {role};
grant select, insert, update, delete on headwater.email_content to {role}
