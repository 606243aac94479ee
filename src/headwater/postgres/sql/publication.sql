-- name: find_publication
-- A publication and what is in it by name: whole schemas, and tables; narrowed ones have a row filter or a column list.
-- Generated columns are an option since PostgreSQL 18, read through JSON so that the statement suits older servers.
select publication.pubname::text as name,
       owner.rolname::text as owner,
       pg_catalog.pg_has_role(publication.pubowner, 'usage') as is_owner,
       publication.puballtables as all_tables,
       publication.pubinsert as inserts,
       publication.pubupdate as updates,
       publication.pubdelete as deletes,
       publication.pubtruncate as truncates,
       publication.pubviaroot as via_root,
       coalesce(pg_catalog.to_jsonb(publication) ->> 'pubgencols' = 's', false) as generated_columns,
       array(
           select namespace.nspname::text
             from pg_catalog.pg_publication_namespace as member
             join pg_catalog.pg_namespace as namespace on namespace.oid = member.pnnspid
            where member.pnpubid = publication.oid
            order by namespace.nspname
       ) as schemas,
       array(
           select member.prrelid
             from pg_catalog.pg_publication_rel as member
            where member.prpubid = publication.oid
            order by member.prrelid
       ) as tables,
       array(
           select member.prrelid
             from pg_catalog.pg_publication_rel as member
            where member.prpubid = publication.oid
              and (member.prqual is not null or member.prattrs is not null)
            order by member.prrelid
       ) as narrowed
  from pg_catalog.pg_publication as publication
  join pg_catalog.pg_roles as owner on owner.oid = publication.pubowner
 where publication.pubname = %(name)s;

-- name: lock_publication
-- Held until the transaction ends, so that two processes do not make the same publication at once.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('headwater publication ' || %(name)s::text, 0));

-- name: create_publication
-- `only` is written before each table: without it, tables that inherit from one would be added as well.
create publication {name} for table {tables}
  with (publish = {operations}, publish_via_partition_root = {via_root});

-- name: add_tables
-- Changes to them that are written from now on are streamed.
alter publication {name} add table {tables};

-- name: drop_tables
-- Changes to them that are written from now on are not streamed.
alter publication {name} drop table {tables};

-- name: set_options
-- Options that are not named keep their values.
alter publication {name} set (publish = {operations}, publish_via_partition_root = {via_root});
