"""Tables of the target made, or brought to the shape that a table of a source has, from its Avro schema."""

from psycopg import sql

from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.decode.shape import Schema
from headwater.creek.names import Kind
from headwater.errors import NoSchema
from headwater.model import Lsn, Position
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.statements import execute_sync
from headwater.postgres.types import Types
from headwater.spark.creek_apply.settings import ApplySettings
from headwater.spark.sinks.postgres import statements
from headwater.spark.sinks.postgres.evolution import Evolution
from headwater.spark.sinks.postgres.follow import Follower
from headwater.spark.sinks.postgres.reshape import Reshaper
from headwater.spark.sinks.postgres.session import Session, patiently
from headwater.spark.sinks.postgres.target import read_targets
from headwater.spark.sinks.postgres.wire import layout_of, sent_of
from headwater.spark.sources.creek.relation import relation_of
from headwater.spark.sources.creek.schemas import published_schemas

# Only the columns of a primary key are told never to be NULL.
_PRIMARY = "d"


def last_schema(settings: ApplySettings, mapping: TableMapping) -> Schema:
    """The schema of a table that was published last; raises NoSchema if none was."""
    names, topic = settings.names(mapping.topic.database), mapping.topic
    found = published_schemas(settings.access, names, topic)
    if not found:
        subject = names.subject(Kind.SCHEMA, topic.schema, topic.table)
        raise NoSchema(
            f"no schema of table {topic} is on {subject!r}; start its producer, with the table among those that it publishes"
        )
    return Schema(found[-1].schema)


def create_from_schema(settings: ApplySettings, session: Session, mapping: TableMapping) -> bool:
    """Make the target table, if it is missing, from the last schema that was published; whether it was made."""
    relation = relation_of(last_schema(settings, mapping), mapping.target)

    def create() -> bool:
        with session.connection.transaction():
            return create_table(session, relation)

    return patiently(settings.address(), session, create)


def create_table(session: Session, relation: Relation) -> bool:
    """Make a table, in the caller's transaction, unless it is there."""
    name = (relation.schema, relation.name)
    if name in read_targets(session.connection, [name]):
        return False
    keys = [column.name for column in relation.columns if column.key] if relation.identity == _PRIMARY else []
    columns = [(column.name, type_name(column), column.name in keys) for column in relation.columns]
    execute_sync(session.connection, statements.create_schema(relation.schema))
    execute_sync(session.connection, statements.create_table(sql.Identifier(*name), columns, keys))
    Reshaper(session.connection, name).follow(Evolution(), sent_of(relation).identity or ())
    return True


def bring_table(settings: ApplySettings, session: Session, relation: Relation, sequence: int) -> None:
    """Make a table, or alter it to what its source looks like at a place in the stream, in the caller's transaction."""
    create_table(session, relation)
    follower = Follower(settings.address(), session)
    identity = sent_of(relation).identity or ()
    layout = layout_of(relation, Types.builtin())
    follower.bring((relation.schema, relation.name), layout, identity, Position(Lsn(sequence + 1), 0))


def type_name(column: RelationColumn) -> str:
    """The type of a column, as SQL writes it."""
    type_ = Types.builtin()[column.type_oid]
    name = sql.Identifier("pg_catalog", type_.name).as_string()
    if column.typmod < 0:
        return name
    precision, scale = (column.typmod - 4) >> 16, (column.typmod - 4) & 0xFFFF
    return f"{name}({precision},{scale})"
