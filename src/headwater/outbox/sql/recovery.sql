-- name: list_cuts
-- The rows that are to be read, in their order, cut into parts of so many: the last key of each part, and how many it has.
select cut.at, cut.id, cut.number - lag(cut.number, 1, 0) over (order by cut.number) as rows
  from (
      select ({at})::text as at,
             ({id})::text as id,
             row_number() over (order by {at}, {id}) as number,
             count(*) over () as total
        from {table}
       where {condition}
  ) as cut
 where cut.number % {size} = 0
    or cut.number = cut.total
 order by cut.number;

-- name: read_part
-- One lane of one part, in the order of the columns, and not of their texts, which are called the same.
select {columns}
  from {table} as message
 where {condition}
   and {lane}
 order by message.{at}, message.{id};

-- name: not_delivered
-- What one snapshot sees and another one, before it, does not.
{xid} >= {oldest}
and pg_catalog.pg_visible_in_snapshot({xid}, {until})
and not pg_catalog.pg_visible_in_snapshot({xid}, {since})
and {xid} <> all ({delivered});

-- name: seen
-- What a snapshot sees: everything, when nothing is known to have been delivered.
pg_catalog.pg_visible_in_snapshot({xid}, {until});

-- name: unread
-- What an earlier reading, which was not finished, had not delivered.
not (pg_catalog.pg_visible_in_snapshot({xid}, {seen}) and {is_read});

-- name: is_foreign
-- Whether there are rows that are visible here and whose transactions are not: those of another server, as after a restore.
select exists (
    select
      from {table}
     where not pg_catalog.pg_visible_in_snapshot({xid}, pg_catalog.pg_current_snapshot())
) as is_foreign;

-- name: since
-- Rows from a time on, of a table that does not tell their transactions.
{at} >= {since};

-- name: all_rows
true;

-- name: after
({at}, {id}) > ({after_at}, {after_id});

-- name: up_to
({at}, {id}) <= ({last_at}, {last_id});

-- name: lane
-- Some keys of many. What the stream has is split by another rule; within a batch, each key is in one lane either way.
(pg_catalog.hashtextextended(coalesce(({key})::text, ''), 0) & 9223372036854775807) % {lanes} = {lane};

-- name: read_again
-- Rows of a time, whether they were delivered or not, after a key; in order, and so many of them.
select {columns}
  from {table} as message
 where {condition}
 order by message.{at}, message.{id}
 limit {size};

-- name: before
{at} < {until};

-- name: is_one_of
({column})::text = any ({values});
