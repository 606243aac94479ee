-- name: create_table
-- For messages of any number of topics.
create table if not exists {table} (
    topic text not null,
    partition integer not null,
    "offset" bigint not null,
    key text,
    payload bytea not null,
    headers jsonb not null,
    created_at timestamptz not null,
    primary key (topic, partition, "offset")
);

-- name: try_table
-- Fails unless the table has these columns, and may be written to. Inserts nothing.
insert into {table} (topic, partition, "offset", key, payload, headers, created_at)
select topic, partition, "offset", key, payload, headers, created_at
  from {table}
 where false;

-- name: copy_messages
copy {table} (topic, partition, "offset", key, payload, headers, created_at) from stdin;

-- name: has_table
select to_regclass(%(table)s) is not null;
