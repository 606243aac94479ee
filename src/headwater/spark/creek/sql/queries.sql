-- name: approximate_rows
-- How many rows the planner reckons with; -1 if nobody has counted them yet.
select class.reltuples::bigint as rows
  from pg_catalog.pg_class as class
 where class.oid = %(oid)s;

-- name: find_misfit
-- Whether a table has a row that its plain schema cannot hold.
select 1 as found
  from only {part}
 where ({misfit})
   and ({row_filter})
 limit 1;

-- name: is_not_null
{value} is not null

-- name: is_not_finite
{value} in ('NaN', 'Infinity', '-Infinity')

-- name: is_after_timestamps
-- Later than 64 bits of microseconds since 1970 can tell; the last of them stands for infinity.
{value} >= timestamp '294247-01-10 04:00:54.775807' and {value} < timestamp 'infinity'

-- name: is_after_timestamptzs
{value} >= timestamptz '294247-01-10 04:00:54.775807+00' and {value} < timestamptz 'infinity'

-- name: is_unusual_array
-- Not a list: it has several dimensions, is counted from elsewhere, or has NULL in it.
pg_catalog.array_ndims({value}) > 1
    or pg_catalog.array_lower({value}, 1) <> 1
    or exists (select from pg_catalog.unnest({value}) as element (value) where element.value is null or ({misfit}))
