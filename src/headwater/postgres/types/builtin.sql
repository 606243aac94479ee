-- name: builtin_types
-- The types whose oid is the same on every server, in the shape of builtin.csv; `psql --csv -f builtin.sql` writes that file anew.
-- Row types of system tables are left out, for their columns differ between versions; so are pseudo-types, which no column has.
select type.oid,
       type.typname as name,
       case when type.typoutput = 'pg_catalog.array_out'::regproc then 'a' else type.typtype end as kind,
       case type.typtype
           when 'r' then range.rngsubtype
           when 'm' then multirange.rngtypid
           else element.oid
       end as element,
       nullif(type.typdelim, ',') as delimiter
  from pg_catalog.pg_type as type
  left join pg_catalog.pg_range as range on range.rngtypid = type.oid
  left join pg_catalog.pg_range as multirange on multirange.rngmultitypid = type.oid
  left join pg_catalog.pg_type as element
    on element.oid = type.typelem and type.typsubscript = 'pg_catalog.array_subscript_handler'::regproc
 where type.oid < 10000
   and type.typtype not in ('c', 'p')
   and element.typtype is distinct from 'c'
 order by type.oid;
