-- name: drop_free_slot
-- A slot that nobody reads any more.
select pg_drop_replication_slot(slot_name) is not null as dropped
  from pg_replication_slots
 where slot_name = %(slot)s
   and not active;

-- name: drop_publication
drop publication if exists {name};

-- name: count_pieces
-- Into how many pieces a table was cut, each of which is a partition of Spark's.
select max(pieces_total) from headwater.pipeline_table;

-- name: count_accounts
select count(*) from account;

-- name: has_accounts
select exists (select from account) as found;
