-- name: set_session
-- Values have the same text on both sides, whatever the defaults there are; names of types say their schema. A table whose
-- rows are hidden from this role is an error, not a difference.
set datestyle = 'ISO, YMD';
set intervalstyle = 'postgres';
set timezone = 'UTC';
set extra_float_digits = 1;
set bytea_output = 'hex';
set lc_monetary = 'C';
set search_path = '';
set row_security = off;
set statement_timeout = 0;
set idle_in_transaction_session_timeout = 0;
set lock_timeout = '10s';
set jit = off;
set work_mem = '64MB';
set max_parallel_workers_per_gather = 4;
set cursor_tuple_fraction = 1;

-- name: lift_transaction_timeout
-- Servers before 17 do not have it.
select pg_catalog.set_config(setting.name, '0', false)
  from pg_catalog.pg_settings as setting
 where setting.name = 'transaction_timeout';

-- name: begin_snapshot
-- What follows sees the database as it is at the next statement.
begin transaction isolation level repeatable read, read only;

-- name: end_snapshot
-- From here on each statement sees what is there then.
rollback;

-- name: read_moment
-- When and where in the WAL the snapshot stands: all that it shows was written before.
select pg_catalog.clock_timestamp() as at,
       case
           when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
           else pg_catalog.pg_current_wal_insert_lsn()
       end as lsn,
       pg_catalog.current_setting('server_encoding') as encoding;

-- name: estimate_rows
-- What the server believes that a table and its partitions hold; nothing, if it was never analyzed.
select coalesce(sum(class.reltuples) filter (where class.reltuples > 0), 0)::bigint as rows
  from pg_catalog.pg_class as class
 where class.oid = %(table)s
    or class.oid in (select part.relid from pg_catalog.pg_partition_tree(%(table)s::oid::regclass) as part where part.isleaf);

-- name: digest_rows
-- One scan: how many rows each bucket has, and a sum over them that no order changes. Sums of bigint are exact. The offset
-- keeps the planner from looking into the expressions, and from believing that there are as many buckets as keys: it would
-- not sum up in parallel then. It has to be a constant of this type to be known as none before the planner begins.
select hashed.bucket,
       count(*) as rows,
       sum(hashed.hash)::text as total
  from (select {bucket} as bucket, {hash} as hash from {table} offset bigint '0') as hashed
 group by hashed.bucket;

-- name: read_entries
-- The rows of some buckets by their keys, in the order of the bytes of these in UTF-8.
select array[{key}]::text[] as key,
       {hash} as hash
  from {table}
 where {bucket} = any({buckets})
 order by {order};

-- name: find_entries
-- The rows with some keys, by the index if there is one.
select array[{key}]::text[] as key,
       {hash} as hash
  from {table}
 where ({columns}) in (select {values} from unnest({arrays}) as wanted ({names}));

-- name: find_columns
-- The same rows, each column by itself; a NULL is `()`, an empty text is `("")`.
select array[{key}]::text[] as key,
       array[{texts}]::text[] as texts
  from {table}
 where ({columns}) in (select {values} from unnest({arrays}) as wanted ({names}));

-- name: find_by_hash
-- The rows of a table without a key that have some hashes.
select array[{key}]::text[] as key,
       {hash} as hash
  from {table}
 where {hash} = any({hashes});

-- name: show_by_hash
-- The rows of a table without a key that have some hashes, as far as they are worth reading.
select distinct array[{key}]::text[] as key,
       array[left({row}::text, {length})] as texts
  from {table}
 where {hash} = any({hashes});
