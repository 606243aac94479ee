-- name: listen
-- Notifications of transactions that commit from now on come to this session.
listen {channel};

-- name: probe
-- A round trip, which shows a connection that died without a word.
select 1 as alive;
