"""Where a Kafka cluster is and how to get in: a plain value, which travels to Spark's tasks and shows no secret."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headwater.brokers.base import check_template
from headwater.errors import SettingsError

# What the guarantees rest on, and what has a setting of its own; librdkafka's other names for the same are among them.
RESERVED: Final = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "transactional.id",
        "retries",
        "message.send.max.retries",
    }
)
# A name or an address, one of IPv6 in brackets, and a port.
_SERVER: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/?#\[\]]+)(?::\d{1,5})?")
# Parts of the names of librdkafka's settings that hold secrets.
_SECRETS = ("password", "secret", "pem", "sasl.oauthbearer", "sasl.jaas")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """A cluster, and how messages are sent to its topics.

    `settings` are librdkafka's own, by its names: security.protocol, sasl.username, compression.type and the like.
    """

    bootstrap_servers: str
    # The topic of a message; {topic} and {type} stand for its own.
    topic: str = "{topic}"
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    # For an acknowledgement, for a connection, and for the cluster to come back.
    timeout: timedelta = timedelta(seconds=30)
    # The attribute `source` of the CloudEvents.
    source: str = "headwater"

    def __post_init__(self) -> None:
        if not all(server.strip() for server in self.bootstrap_servers.split(",")):
            raise SettingsError(
                "the bootstrap_servers for Kafka name no server; write host:9092, with commas between several"
            )
        if "@" in self.bootstrap_servers:
            raise SettingsError(
                "the bootstrap_servers for Kafka hold no credentials; give sasl.username and sasl.password in the settings"
            )
        if not all(_SERVER.fullmatch(server.strip()) for server in self.bootstrap_servers.split(",")):
            raise SettingsError(
                "the bootstrap_servers for Kafka are addresses and nothing else; write host:9092, with commas between "
                "several, or as a url kafka://host:9092, and give security.protocol and the like in the settings"
            )
        check_template("the topic for Kafka", self.topic)
        if reserved := sorted(RESERVED & self.settings.keys()):
            raise SettingsError(f"the setting {reserved[0]} of Kafka is not yours to give; remove it from the settings")
        if self.timeout < timedelta(milliseconds=1):
            raise SettingsError("the timeout for Kafka must be more than 0 s")
        if not self.source:
            raise SettingsError("the source for Kafka is empty; name what the messages come from")

    def describe(self) -> str:
        """The addresses of the servers, for messages."""
        return self.bootstrap_servers

    def without_secrets(self, text: str) -> str:
        """A text of librdkafka's, in which no secret of the settings is readable."""
        secrets = {value for name, value in self.settings.items() if value and any(part in name for part in _SECRETS)}
        # The longest first: another may be a part of it.
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text
