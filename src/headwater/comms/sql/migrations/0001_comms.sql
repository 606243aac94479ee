-- What became of every attempt to send an e-mail, and attachments. Nothing of an earlier release uses these tables; e-mails
-- themselves are jobs of the queue.

create table headwater.email_attempt (
    -- Given by who writes it, so that a row whose answer was lost can be written again.
    id uuid primary key,
    job_id bigint not null,
    attempt integer not null,
    at timestamptz not null,
    took interval not null,
    -- By what it was sent: a mail server or an HTTP API, without any secret.
    sender text not null,
    outcome text not null,
    code integer,
    response text not null,
    message_id text not null,
    -- Who has the message since. Nobody of them is sent it again.
    accepted text[] not null,
    -- Who was refused, also by earlier attempts for good. Nobody of the latter is offered it again, unless the job is retried.
    refused jsonb not null,
    constraint email_attempt_outcome check (outcome in ('sent', 'transient', 'permanent'))
) with (autovacuum_vacuum_insert_scale_factor = 0.05);

create index email_attempt_job on headwater.email_attempt (job_id);
-- For those that are removed after some time.
create index email_attempt_at on headwater.email_attempt using brin (at) with (autosummarize = on);

comment on table headwater.email_attempt is 'Attempts to send e-mails, which are jobs of kind email, with the answers of providers.';

-- What is attached to e-mails: each file once, however many it goes to. Claims of jobs do not carry it.
create table headwater.email_content (
    -- SHA-256 of the content, in hexadecimal.
    digest text primary key,
    content bytea not null,
    used_at timestamptz not null default clock_timestamp()
);

-- Most of it is compressed already.
alter table headwater.email_content alter column content set storage external;
create index email_content_used_at on headwater.email_content (used_at);
