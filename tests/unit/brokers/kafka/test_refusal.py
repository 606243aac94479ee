import pytest
from confluent_kafka import KafkaError

from headwater.brokers.kafka.refusal import Verdict, judge, refusal


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Verdict.MESSAGE),
        (KafkaError.INVALID_RECORD, Verdict.MESSAGE),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Verdict.TOPIC),
        (KafkaError._UNKNOWN_TOPIC, Verdict.TOPIC),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Verdict.TOPIC),
        (KafkaError._AUTHENTICATION, Verdict.ENTRY),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Verdict.ENTRY),
        (KafkaError._PURGE_QUEUE, Verdict.PURGED),
        (KafkaError._MSG_TIMED_OUT, Verdict.AGAIN),
        (KafkaError._FATAL, Verdict.AGAIN),
        (KafkaError.NOT_ENOUGH_REPLICAS, Verdict.AGAIN),
    ],
)
def test_an_error_says_whether_another_try_can_help(code, verdict):
    assert judge(KafkaError(code)) is verdict


def test_a_refusal_names_the_topic_the_reason_and_the_remedy():
    reason = refusal("orders", KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    assert reason == "topic 'orders': Broker: Unknown topic or partition; create it, or set the topic to one that exists"
