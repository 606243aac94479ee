"""What stands between us and the stream: a pooler, the right to replicate, a slot, a publication."""

from collections.abc import Iterator, Sequence

from headwater.cli.check.finding import Finding, error, ok, refused, warning
from headwater.cli.output import human_bytes
from headwater.errors import HeadwaterError
from headwater.postgres.catalog import Rights, Server, Table, is_pooled
from headwater.postgres.connect import Connection
from headwater.postgres.replication.publication import Found, Publication, plan
from headwater.postgres.replication.slot import Slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection, SystemIdentity


def check_pooler(connection: Connection) -> Finding:
    """Whether a pooler is in front; replication and LISTEN need the server itself."""
    if is_pooled(connection):
        return warning(
            "connection",
            "a pooler is in front of the server, which does not carry LISTEN, and often no replication",
            "give the server's own host and port",
        )
    return ok("connection", "leads straight to the server")


def check_replication(url: str, server: Server) -> Finding:
    """Open a replication connection, which is the only proof that the role, pg_hba.conf and the way allow it."""
    try:
        with ReplicationConnection(url) as replication:
            return judge_identity(replication.identify(), server)
    except HeadwaterError as exc:
        return refused("replication connection", exc)


def judge_identity(identity: SystemIdentity, server: Server) -> Finding:
    if identity.system_identifier != server.system_identifier:
        return error(
            "replication connection",
            "it reached another server than the plain connection did, as behind a load balancer",
            "give the address of one server",
        )
    right = "superuser" if server.is_superuser else "has replication" if server.can_replicate else "by a role it is in"
    return ok("replication connection", f"role {server.user} may replicate ({right})")


def check_slot(slot: Slot | None, name: str, database: str) -> Finding:
    subject = f"slot {name}"
    if slot is None:
        return ok(subject, "does not exist yet")
    try:
        require_usable(slot, name, database)
    except HeadwaterError as exc:
        return refused(subject, exc)
    kept = kept_by(slot)
    if slot.wal_status == "unreserved":
        return warning(
            subject, f"{kept} and is about to be invalidated", "start its reader now, or raise max_slot_wal_keep_size"
        )
    if slot.active:
        return warning(
            subject, f"is read by process {slot.active_pid}; {kept}", "stop that reader first, or name another slot"
        )
    return ok(subject, kept)


def kept_by(slot: Slot) -> str:
    return f"keeps {human_bytes(slot.retained_bytes or 0)} of WAL"


def check_publication(
    name: str,
    found: Found | None,
    chosen: Sequence[Table],
    tables: Sequence[Table],
    server: Server,
    rights: Sequence[Rights],
) -> Iterator[Finding]:
    """Whether a publication covers the chosen tables, or can be made to."""
    subject = f"publication {name}"
    if found is None:
        yield ok(subject, "does not exist yet")
        yield from check_creation(subject, chosen, server, rights)
        return
    narrowed = [table for table in chosen if table.oid in found.narrowed]
    if narrowed:
        listed = ", ".join(map(str, narrowed))
        yield warning(
            subject,
            f"has a row filter or a column list for {listed}",
            "nothing, if they are to go: capture publishes whole tables; otherwise use a publication of another name",
        )
    if not chosen:
        yield ok(subject, "exists")
        return
    wanted = Publication(name=name, tables=tuple(map(str, chosen)), via_root=found.via_root)
    steps = "; ".join(map(str, plan(wanted, chosen, found, tables)))
    if not steps:
        yield ok(subject, "covers the tables")
    elif found.is_owner:
        yield warning(
            subject, f"to cover exactly these tables it has to change: {steps}", "nothing: capture does so when it starts"
        )
    else:
        yield error(
            subject,
            f"has to change to cover the tables: {steps}",
            f"have its owner {found.owner} do so, or become a member of it",
        )


def check_creation(subject: str, chosen: Sequence[Table], server: Server, rights: Sequence[Rights]) -> Iterator[Finding]:
    """Whether the user may make a publication of some tables: that takes CREATE on the database, and owning the tables."""
    if not server.can_create:
        yield error(
            subject,
            f"role {server.user} may not create it in database {server.database}",
            f"run `grant create on database {server.database} to {server.user}`, or have a superuser make the publication",
        )
    owned = {right.oid for right in rights if right.is_owner}
    foreign = [table for table in chosen if table.oid not in owned]
    if foreign and not server.is_superuser:
        listed = ", ".join(map(str, foreign))
        yield error(
            subject,
            f"role {server.user} does not own {listed}, so it may not publish them",
            f"have their owner run `create publication ... for table {listed}`, or grant that role to {server.user}",
        )
