-- name: see_latest
-- First in a transaction: what was committed while it waited for a lock has to be seen, whatever the role's default is.
set transaction isolation level read committed;

-- name: is_latest
-- Whether transactions are so by default.
select current_setting('default_transaction_isolation') in ('read committed', 'read uncommitted');
