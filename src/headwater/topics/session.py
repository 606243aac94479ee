"""Connections of producers and of those who ring for them."""

from headwater.errors import HeadwaterError, TopicError
from headwater.postgres.session import Session
from headwater.topics.topic import no_topics


class TopicSession(Session):
    """What our functions refuse is a TopicError."""

    _tables, _own_error = "topics", TopicError

    def _missing(self) -> HeadwaterError:
        return no_topics()
