"""Topics: logs in PostgreSQL with gapless offsets, which groups read at their own pace."""

from headwater.topics.append import append, append_sync, number, number_sync
from headwater.topics.message import Message
from headwater.topics.topic import Topic, create, create_sync, find, find_sync, list_topics, prepare_topics, require_topics

__all__ = [
    "Message",
    "Topic",
    "append",
    "append_sync",
    "create",
    "create_sync",
    "find",
    "find_sync",
    "list_topics",
    "number",
    "number_sync",
    "prepare_topics",
    "require_topics",
]
