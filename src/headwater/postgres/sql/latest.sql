-- name: see_latest
-- First in a transaction: what was committed while it waited for a lock has to be seen, whatever the role's default is.
set transaction isolation level read committed;

-- name: is_latest
-- Whether transactions are so by default.
select current_setting('default_transaction_isolation') in ('read committed', 'read uncommitted');

-- name: bound_waiting
-- Until the transaction ends: whoever waits for a lock makes all others wait behind, and so does a client that holds one and
-- has stalled or is cut off.
select pg_catalog.set_config('lock_timeout', %(lock_ms)s::text, true),
       pg_catalog.set_config(
           'statement_timeout', coalesce(%(statement_ms)s::text, pg_catalog.current_setting('statement_timeout')), true
       ),
       pg_catalog.set_config('idle_in_transaction_session_timeout', %(idle_ms)s::text, true);
