-- name: own_publication
-- Hold the name of a publication that is ours for the length of this session; the next tail drops those nobody holds.
select pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended(%(name)s, 0)) is not null as held;

-- name: forgotten_publications
-- Publications that a tail which was killed has left behind: no session holds their name any more.
select publication.pubname
  from pg_catalog.pg_publication as publication
  join pg_catalog.pg_roles as owner
    on owner.oid = publication.pubowner
 where starts_with(publication.pubname, %(prefix)s)
   and pg_catalog.pg_has_role(owner.oid, 'usage')
   and pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(publication.pubname, 0));

-- name: drop_publication
-- Drop a publication; its tables stay as they are.
drop publication if exists {name};
