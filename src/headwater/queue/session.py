"""The connections of workers and of those who enqueue one by one."""

from psycopg.types.json import set_json_loads

from headwater.errors import HeadwaterError, JobError
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.session import PreparedSession
from headwater.queue.job import decode_payload
from headwater.queue.missing import no_queue


class QueueSession(PreparedSession):
    """What our functions refuse is a JobError."""

    _tables, _own_error = "the queue", JobError
    _reading: AsyncConnection | None = None

    async def opened(self) -> AsyncConnection:
        connection = await super().opened()
        if connection is not self._reading:
            # What cannot be read is one job's trouble, and not that of all who were claimed with it.
            set_json_loads(decode_payload, connection)
            self._reading = connection
        return connection

    def _missing(self) -> HeadwaterError:
        return no_queue()
