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

-- name: find_earlier
-- Who has some messages already, and who was refused, by earlier attempts, in order.
select job_id, attempt, outcome, accepted, refused
  from headwater.email_attempt
 where job_id = any(%(job_ids)s::bigint[])
   and (accepted <> '{}' or refused <> '[]')
 order by at;

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
-- Attempts of long ago, but for those of messages that may be sent yet: they say who has them.
with old as (
    select id
      from headwater.email_attempt as tried
     where at < now() - %(kept)s::interval
       and not exists (select from headwater.job where job.id = tried.job_id)
       and not exists (select from headwater.job_dead where job_dead.id = tried.job_id)
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
-- Attachments that nobody has used for long, but for those of messages that may be sent yet. These are as old: since younger
-- ones have noted their use, within a day, they are not looked at.
with may_be_sent as (
    select payload from headwater.job where kind = %(kind)s and created_at < now() - %(kept)s::interval + interval '1 day'
     union all
    select payload from headwater.job_dead where kind = %(kind)s and created_at < now() - %(kept)s::interval + interval '1 day'
), needed as (
    select attached ->> 'sha256' as digest
      from may_be_sent
     cross join lateral jsonb_path_query(payload, '$.attachments[*]') as attached
), old as (
    select digest
      from headwater.email_content as content
     where used_at < now() - %(kept)s::interval
       and not exists (select from needed where needed.digest = content.digest)
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
