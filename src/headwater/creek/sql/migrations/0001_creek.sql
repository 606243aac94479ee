-- Creek's own objects, in the source database. A database that a Creek producer has used has them already: the table stays
-- as it is, and the functions, whose arguments must keep their names, are replaced. Running producers of either kind go on.
create table if not exists _creek.avro_schemas (
    fingerprint text,
    schema text,
    source text,
    at timestamptz default now(),
    constraint pk_avro_schema primary key (fingerprint)
);

comment on table _creek.avro_schemas is 'Every Avro schema that a message was published under, by its fingerprint.';

create or replace function _creek.require_identity(_tbl regclass) returns void
    language plpgsql
    stable
    set search_path = ''
    as $$
declare
    keyless text;
begin
    -- What holds the rows of the table: itself, or the leaves of a partitioned one.
    select pg_catalog.format('%I.%I', namespace.nspname, leaf.relname)
      into keyless
      from pg_catalog.pg_class as root
      join lateral (
               select root.oid where root.relkind <> 'p'
                union all
               select member.relid from pg_catalog.pg_partition_tree(root.oid) as member where member.isleaf
           ) as family (oid) on true
      join pg_catalog.pg_class as leaf on leaf.oid = family.oid and leaf.relkind = 'r'
      join pg_catalog.pg_namespace as namespace on namespace.oid = leaf.relnamespace
     where root.oid = _tbl
       and leaf.relreplident <> 'f'
       and not exists (
               select
                 from pg_catalog.pg_index as index
                where index.indrelid = leaf.oid
                  and index.indimmediate
                  and index.indisvalid
                  and case leaf.relreplident when 'd' then index.indisprimary when 'i' then index.indisreplident end
           )
     limit 1;
    if keyless is not null then
        raise exception 'table % has no replica identity, so its updates and deletes would fail once it is published', keyless
            using errcode = 'object_not_in_prerequisite_state',
                  hint = pg_catalog.format('Add a primary key, or run: alter table %s replica identity full', keyless);
    end if;
end
$$;

create or replace function _creek.add_table(pub text, _tbl regclass) returns void
    language plpgsql
    set search_path = ''
    as $$
declare
    publication pg_catalog.pg_publication;
    ns text;
    tbl text;
begin
    select * into publication from pg_catalog.pg_publication where pubname = pub;
    if not found then
        raise exception 'publication "%" does not exist', pub
            using errcode = 'undefined_object', hint = 'Name the publication that the producer reads through.';
    end if;
    select namespace.nspname, class.relname
      into strict ns, tbl
      from pg_catalog.pg_class as class
      join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
     where class.oid = _tbl;
    if publication.pubupdate or publication.pubdelete then
        perform _creek.require_identity(_tbl);
    end if;
    if not publication.puballtables and not exists (
        select from pg_catalog.pg_publication_rel as member where member.prpubid = publication.oid and member.prrelid = _tbl
    ) then
        execute pg_catalog.format('alter publication %I add table only %I.%I', pub, ns, tbl);
    end if;
    perform pg_catalog.pg_notify('creek', 'ADD ' || ns || '.' || tbl);
end
$$;

create or replace function _creek.remove_table(pub text, _tbl regclass) returns void
    language plpgsql
    set search_path = ''
    as $$
declare
    ns text;
    tbl text;
begin
    select namespace.nspname, class.relname
      into strict ns, tbl
      from pg_catalog.pg_class as class
      join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
     where class.oid = _tbl;
    execute pg_catalog.format('alter publication %I drop table only %I.%I', pub, ns, tbl);
    perform pg_catalog.pg_notify('creek', 'REMOVE ' || ns || '.' || tbl);
end
$$;

comment on function _creek.add_table is 'Adds a table to a publication, and so to the producer that reads through it, which follows at once.';
comment on function _creek.remove_table is 'Takes a table out of a publication, and so out of what its producer sends.';
comment on function _creek.require_identity is 'Refuses a table whose updates and deletes would fail once it is published.';
