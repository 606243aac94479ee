"""A Kafka cluster for the tests: librdkafka's own mock, which speaks the real protocol on real sockets of this machine.

confluent-kafka brings librdkafka along, and the mock with it. What it can be told to fail is only in the C interface, so
that is what is called here. It keeps everything in memory and knows no replication: it shows our use of the protocol, and
not Kafka itself.
"""

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

# Numbers of requests, as the protocol has them.
PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22
_PRODUCER = 0
_CHARACTERS = 512


class KafkaCluster:
    """Some brokers; topics appear when they are first used, with four partitions each."""

    def __init__(self, brokers: int = 1) -> None:
        self._brokers = brokers
        self._library = _library()
        self._handle: int | None = None
        self._cluster: int | None = None

    def __enter__(self) -> Self:
        words = ctypes.create_string_buffer(_CHARACTERS)
        config = self._library.rd_kafka_conf_new()
        # What happens to its connections is nobody's business.
        self._library.rd_kafka_conf_set(config, b"log_level", b"0", words, _CHARACTERS)
        self._handle = self._library.rd_kafka_new(_PRODUCER, config, words, _CHARACTERS)
        assert self._handle, words.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, self._brokers)
        assert self._cluster
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    @property
    def bootstrap_servers(self) -> str:
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return servers.decode()

    @property
    def url(self) -> str:
        """For proxies."""
        return f"kafka://{self.bootstrap_servers}"

    def create(self, topic: str, partitions: int) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def fail_topic(self, topic: str, error: int) -> None:
        """Answer questions about a topic with an error from now on."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)

    def fail_requests(self, api: int, *errors: int) -> None:
        """Answer the next requests of a kind with errors, one each."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api, len(errors), array)

    def forget_failures(self, api: int) -> None:
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, api)

    def advertise(self, port: int, broker: int = 1) -> None:
        """Have clients come to another port of this machine, behind which a proxy leads to the broker."""
        self._library.rd_kafka_mock_broker_set_host_port(self._cluster, broker, b"127.0.0.1", port)

    def stop(self, broker: int = 1) -> None:
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def start(self, broker: int = 1) -> None:
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, broker) == 0

    def messages(self, topic: str) -> list[Message]:
        """All that a topic holds, partition by partition in their order."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "group.id": "test", "log_level": 0, "fetch.wait.max.ms": 10}
        consumer = Consumer(settings)
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            found = list(_read(consumer, [TopicPartition(topic, partition, 0) for partition in partitions]))
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))


class RefusingKafka:
    """A broker that lets nobody in: it asks for a password, and says that it is wrong."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.bootstrap_servers = f"127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Only this wakes the thread that waits for the next connection.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as requests, suppress(OSError):
            while size := requests.read(4):
                request = requests.read(int.from_bytes(size, "big"))
                api, _, correlation = struct.unpack(">hhi", request[:8])
                body = struct.pack(">i", correlation) + _ANSWERS[api]
                client.sendall(struct.pack(">i", len(body)) + body)


_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_SASL_AUTHENTICATION_FAILED = 58
_ANSWERS = {
    # In its version 3, with compact arrays: which requests there are, from which version to which.
    _API_VERSIONS: struct.pack(">hB", 0, 4)
    + b"".join(
        struct.pack(">hhhB", *one, 0) for one in ((_SASL_HANDSHAKE, 1, 1), (_API_VERSIONS, 0, 3), (_SASL_AUTHENTICATE, 0, 0))
    )
    + struct.pack(">iB", 0, 0),
    _SASL_HANDSHAKE: struct.pack(">hi", 0, 1) + struct.pack(">h", 5) + b"PLAIN",
    _SASL_AUTHENTICATE: struct.pack(">h", _SASL_AUTHENTICATION_FAILED)
    + struct.pack(">h", 9)
    + b"who's tha"
    + struct.pack(">i", 0),
}


def _read(consumer: Consumer, partitions: list[TopicPartition]) -> Iterator[Message]:
    bounds = [consumer.get_watermark_offsets(partition, timeout=10) for partition in partitions]
    assert not any(low for low, _ in bounds), "the mock keeps 5 MiB of a partition; use fewer or smaller messages"
    consumer.assign(partitions)
    for _ in range(sum(high for _, high in bounds)):
        message = consumer.poll(10)
        assert message is not None, "there should be more"
        if message.error() is not None:
            raise KafkaException(message.error())
        yield message


def _library() -> Any:
    """The librdkafka that the client has loaded."""
    spec = find_spec("confluent_kafka")
    assert spec is not None and spec.origin is not None
    (path,) = (Path(spec.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_topic_set_error", None, [pointer, text, number]),
        (
            "rd_kafka_mock_push_request_errors_array",
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
        ("rd_kafka_mock_clear_request_errors", None, [pointer, ctypes.c_int16]),
        ("rd_kafka_mock_broker_set_host_port", None, [pointer, ctypes.c_int32, text, number]),
        ("rd_kafka_mock_broker_set_down", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", number, [pointer, ctypes.c_int32]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
