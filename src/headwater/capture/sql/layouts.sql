-- name: set_layout_reading
-- Values read the same whatever the defaults here are, and the names of types say their schema.
set datestyle = 'ISO';
set intervalstyle = 'iso_8601';
set timezone = 'UTC';
set extra_float_digits = 1;
set bytea_output = 'hex';
set search_path = '';

-- name: list_layouts
-- Tables by oid, or by schema and name, with what tells their columns apart whatever they are called. Rows that are older
-- than a column may have a value there which is kept in the catalog alone. `files` differs once the table was written
-- anew; `newest_xid` is the last transaction that touched a column, also one that is gone, and is 0 if that is long ago.
select class.oid,
       namespace.nspname::text as schema,
       class.relname::text as name,
       coalesce(
           (
               select pg_catalog.md5(
                          pg_catalog.string_agg(pg_catalog.pg_relation_filenode(leaf.relid)::text, ' ' order by leaf.relid::oid)
                      )
                 from pg_catalog.pg_partition_tree(class.oid) as leaf
                where leaf.isleaf
           ),
           pg_catalog.pg_relation_filenode(class.oid)::text,
           ''
       ) as files,
       array(
           select attribute.attname::text
             from pg_catalog.pg_index as index
            cross join lateral unnest(index.indkey) with ordinality as part (attnum, place)
             join pg_catalog.pg_attribute as attribute
               on attribute.attrelid = class.oid and attribute.attnum = part.attnum
            where index.indrelid = class.oid
              and index.indisprimary
              and part.place <= index.indnkeyatts
            order by part.place
       ) as key,
       columns.numbers,
       columns.names,
       columns.type_oids,
       columns.typmods,
       columns.type_names,
       columns.missing,
       columns.has_missing,
       columns.has_default,
       columns.not_null,
       columns.is_generated,
       case when columns.newest_age < 1000000000 then columns.newest_xid else 0 end as newest_xid
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 cross join lateral (
      select coalesce(array_agg(attribute.attnum::int order by attribute.attnum) filter (where is_there), '{}') as numbers,
             coalesce(array_agg(attribute.attname::text order by attribute.attnum) filter (where is_there), '{}') as names,
             coalesce(array_agg(attribute.atttypid order by attribute.attnum) filter (where is_there), '{}') as type_oids,
             coalesce(array_agg(attribute.atttypmod order by attribute.attnum) filter (where is_there), '{}') as typmods,
             coalesce(
                 array_agg(
                     pg_catalog.format_type(attribute.atttypid, attribute.atttypmod) order by attribute.attnum
                 ) filter (where is_there),
                 '{}'
             ) as type_names,
             coalesce(
                 array_agg(pg_catalog.array_to_string(attribute.attmissingval, '') order by attribute.attnum)
                     filter (where is_there),
                 '{}'
             ) as missing,
             coalesce(array_agg(attribute.atthasmissing order by attribute.attnum) filter (where is_there), '{}') as has_missing,
             coalesce(array_agg(attribute.atthasdef order by attribute.attnum) filter (where is_there), '{}') as has_default,
             coalesce(array_agg(attribute.attnotnull order by attribute.attnum) filter (where is_there), '{}') as not_null,
             coalesce(
                 array_agg(attribute.attgenerated <> '' order by attribute.attnum) filter (where is_there), '{}'
             ) as is_generated,
             (array_agg(attribute.xmin::text::bigint order by pg_catalog.age(attribute.xmin)))[1] as newest_xid,
             min(pg_catalog.age(attribute.xmin)) as newest_age
        from pg_catalog.pg_attribute as attribute
       cross join lateral (select not attribute.attisdropped as is_there) as state
       where attribute.attrelid = class.oid
         and attribute.attnum > 0
  ) as columns
 where class.oid = any(%(oids)s::oid[])
    or (namespace.nspname, class.relname) in (
        select wanted.schema, wanted.name from unnest(%(schemas)s::text[], %(names)s::text[]) as wanted (schema, name)
    );
