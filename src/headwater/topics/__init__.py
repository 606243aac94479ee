"""Topics: logs in PostgreSQL with gapless offsets, which groups read at their own pace."""

from headwater.topics.append import append, append_sync, number, number_sync
from headwater.topics.batch import Batch
from headwater.topics.group_statements import DeadLetter, Group, Lag
from headwater.topics.line import Line
from headwater.topics.message import Message
from headwater.topics.operate import (
    drop_group,
    drop_group_sync,
    find_group,
    find_group_sync,
    list_dead,
    list_dead_sync,
    list_groups,
    list_groups_sync,
    pause,
    pause_sync,
    read_lag,
    read_lag_sync,
    replay_dead,
    replay_dead_sync,
    resume,
    resume_sync,
    seek,
    seek_sync,
)
from headwater.topics.places import Placed, Places
from headwater.topics.produce import Producer
from headwater.topics.produce_settings import ProducerSettings
from headwater.topics.retention import Upkept, maintain, trim
from headwater.topics.retention_statements import Segment
from headwater.topics.subscribe import Subscriber
from headwater.topics.subscribe_settings import SubscriberSettings
from headwater.topics.topic import (
    Topic,
    add_partitions,
    add_partitions_sync,
    create,
    create_sync,
    find,
    find_sync,
    list_topics,
    list_topics_sync,
    prepare_topics,
    require_topics,
)

__all__ = [
    "Batch",
    "DeadLetter",
    "Group",
    "Lag",
    "Line",
    "Message",
    "Placed",
    "Places",
    "Producer",
    "ProducerSettings",
    "Segment",
    "Subscriber",
    "SubscriberSettings",
    "Topic",
    "Upkept",
    "add_partitions",
    "add_partitions_sync",
    "append",
    "append_sync",
    "create",
    "create_sync",
    "drop_group",
    "drop_group_sync",
    "find",
    "find_group",
    "find_group_sync",
    "find_sync",
    "list_dead",
    "list_dead_sync",
    "list_groups",
    "list_groups_sync",
    "list_topics",
    "list_topics_sync",
    "maintain",
    "number",
    "number_sync",
    "pause",
    "pause_sync",
    "prepare_topics",
    "read_lag",
    "read_lag_sync",
    "replay_dead",
    "replay_dead_sync",
    "require_topics",
    "resume",
    "resume_sync",
    "seek",
    "seek_sync",
    "trim",
]
