"""Where a Service Bus namespace is and how to get in: a plain value, which travels to Spark's tasks and shows no secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

from headwater.brokers.base import check_template
from headwater.errors import SettingsError

_EXAMPLE = "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBusAccess:
    """A namespace, and how messages are sent to its queues and topics.

    `connection_string` is that of the portal, of the namespace or of one entity, with a right to send.
    """

    connection_string: str = field(repr=False)
    # The queue or topic of a message; {topic} and {type} stand for its own.
    entity: str = "{topic}"
    # Whether the key of a message is its session. Entities without sessions take such messages too, but each key then gets
    # batches of its own for nothing.
    sessions: bool = True
    # For a settlement, for a connection, and for the service to come back.
    timeout: timedelta = timedelta(seconds=30)
    # The attribute `source` of the CloudEvents.
    source: str = "headwater"

    def __post_init__(self) -> None:
        parts = self._parts()
        if not self._host(parts):
            raise SettingsError(f"the connection string of Service Bus has no Endpoint; it must look like {_EXAMPLE}")
        if not ("sharedaccesssignature" in parts or {"sharedaccesskeyname", "sharedaccesskey"} <= parts.keys()):
            raise SettingsError(
                "the connection string of Service Bus has neither SharedAccessKeyName and SharedAccessKey nor "
                f"SharedAccessSignature; it must look like {_EXAMPLE}"
            )
        if parts.get("usedevelopmentemulator", "true") not in ("true", "false"):
            raise SettingsError("UseDevelopmentEmulator in the connection string of Service Bus must be true or false")
        check_template("the entity for Service Bus", self.entity)
        if (only := parts.get("entitypath", self.entity)) != self.entity:
            raise SettingsError(
                f"the connection string of Service Bus is for {only!r} only, and the entity is {self.entity!r}; set the "
                f"entity to {only!r}, or take a connection string of the namespace"
            )
        if self.timeout <= timedelta(0):
            raise SettingsError("the timeout for Service Bus must be more than 0 s")
        if not self.source:
            raise SettingsError("the source for Service Bus is empty; name what the messages come from")

    def describe(self) -> str:
        """The address of the namespace, for messages."""
        return self._host(self._parts())

    def _parts(self) -> Mapping[str, str]:
        """The parts of the connection string, by their names in lower case; none is repeated in an error."""
        found = {}
        for part in self.connection_string.strip().rstrip(";").split(";"):
            name, sign, value = part.partition("=")
            if not sign or not value.strip():
                raise SettingsError(f"the connection string of Service Bus is malformed; it must look like {_EXAMPLE}")
            found[name.strip().lower()] = value.strip()
        return found

    def _host(self, parts: Mapping[str, str]) -> str:
        return urlsplit(parts.get("endpoint", "")).netloc.rpartition("@")[2]
