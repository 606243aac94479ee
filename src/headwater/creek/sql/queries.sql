-- name: save_schemas
-- Schemas that are not known yet; of one that is, what was said of it first stays. Returns those that are new.
insert into _creek.avro_schemas (fingerprint, schema, source)
select given.fingerprint, given.schema, given.source
  from unnest(%(fingerprints)s::text[], %(schemas)s::text[], %(sources)s::text[]) as given (fingerprint, schema, source)
    on conflict (fingerprint) do nothing
returning fingerprint;

-- name: find_schema
select fingerprint, schema, source, at as created_at
  from _creek.avro_schemas
 where fingerprint = %(fingerprint)s;

-- name: has_store
-- Whether the table is there and can be read and written.
select coalesce(pg_catalog.has_table_privilege(class.oid, 'select, insert'), false)
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = '_creek' and class.relname = 'avro_schemas';

-- name: list_published
-- What a publication sends, table by table, under the names and with the columns that the stream has. A partition goes by
-- its root's name if the publication says so. Takes no lock, unlike pg_publication_tables.
select class.oid,
       namespace.nspname::text as schema,
       class.relname::text as name,
       class.relreplident::text as identity,
       array(
           select attribute.attname::text
             from pg_catalog.pg_attribute as attribute
            where attribute.attrelid = class.oid
              and attribute.attnum > 0
              and not attribute.attisdropped
              and case
                      when member.prattrs is not null then attribute.attnum = any(member.prattrs)
                      when attribute.attgenerated = '' then true
                      else attribute.attgenerated = 's' and pg_catalog.to_jsonb(publication) ->> 'pubgencols' = 's'
                  end
            order by attribute.attnum
       ) as columns,
       member.oid is not null as is_named
  from pg_catalog.pg_publication as publication
  join pg_catalog.pg_class as class on class.relkind in ('r', 'p') and class.relpersistence = 'p' and class.oid >= 16384
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  left join pg_catalog.pg_publication_rel as member on member.prpubid = publication.oid and member.prrelid = class.oid
 cross join lateral (
      select exists (
                 select
                   from pg_catalog.pg_partition_ancestors(class.oid) as ancestor
                   join pg_catalog.pg_publication_rel as above on above.prrelid = ancestor.relid
                  where class.relispartition and ancestor.relid <> class.oid and above.prpubid = publication.oid
             ) as by_parent,
             publication.puballtables
                 or exists (
                     select
                       from pg_catalog.pg_publication_namespace as whole
                      where whole.pnpubid = publication.oid and whole.pnnspid = class.relnamespace
                 ) as by_schema
  ) as sent
 where publication.pubname = %(publication)s
   and (member.oid is not null or sent.by_parent or sent.by_schema)
   and case
           when publication.pubviaroot then not (sent.by_parent or (sent.by_schema and class.relispartition))
           else class.relkind = 'r'
       end
 order by namespace.nspname, class.relname;
