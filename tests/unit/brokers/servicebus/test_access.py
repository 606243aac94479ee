import pickle
import subprocess
import sys
from datetime import timedelta

import pytest

from headwater.brokers.servicebus import ServiceBusAccess, ServiceBusBroker
from headwater.errors import SettingsError

ENDPOINT = "Endpoint=sb://shop.servicebus.windows.net/"
GOOD = f"{ENDPOINT};SharedAccessKeyName=relay;SharedAccessKey=hidden=="


def test_the_namespace_is_described_and_the_key_is_not_shown():
    access = ServiceBusAccess(connection_string=GOOD)
    assert access.describe() == "shop.servicebus.windows.net"
    assert "hidden" not in repr(access) + access.describe()


def test_an_access_travels_to_another_process():
    access = ServiceBusAccess(connection_string=GOOD, timeout=timedelta(seconds=3), sessions=False)
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize(
    "text",
    [
        f"{ENDPOINT};SharedAccessSignature=SharedAccessSignature sr=x&sig=hidden&se=1&skn=relay",
        f"{GOOD};",
        f"{GOOD};UseDevelopmentEmulator=true;",
        GOOD.replace("Endpoint", "endpoint"),
    ],
)
def test_other_forms_of_connection_strings_are_understood(text):
    assert ServiceBusAccess(connection_string=text).describe() == "shop.servicebus.windows.net"


def test_a_connection_string_of_one_entity_goes_with_that_entity():
    text = f"{GOOD};EntityPath=orders"
    assert ServiceBusAccess(connection_string=text, entity="orders").entity == "orders"
    with pytest.raises(SettingsError, match="is for 'orders' only"):
        ServiceBusAccess(connection_string=text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"connection_string": ""}, "malformed"),
        ({"connection_string": "hidden"}, "malformed"),
        ({"connection_string": f"{ENDPOINT};SharedAccessKeyName=relay;SharedAccessKey="}, "malformed"),
        ({"connection_string": "SharedAccessKeyName=relay;SharedAccessKey=hidden"}, "no Endpoint"),
        ({"connection_string": "Endpoint=shop;SharedAccessKeyName=relay;SharedAccessKey=hidden"}, "no Endpoint"),
        ({"connection_string": f"{ENDPOINT};SharedAccessKey=hidden"}, "neither SharedAccessKeyName"),
        ({"connection_string": f"{ENDPOINT};SharedAccessKeyName=relay"}, "neither SharedAccessKeyName"),
        ({"connection_string": f"{GOOD};UseDevelopmentEmulator=True"}, "must be true or false"),
        ({"entity": "{tenant}"}, "names {tenant}"),
        ({"entity": ""}, "is empty"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"source": ""}, "source"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_secrets(given, message):
    with pytest.raises(SettingsError, match=message) as refusal:
        ServiceBusAccess(**{"connection_string": GOOD, **given})
    assert "hidden" not in str(refusal.value)


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.servicebus", None)
    with pytest.raises(SettingsError, match=r"install headwater\[servicebus\]"):
        ServiceBusBroker(ServiceBusAccess(connection_string=GOOD))


def test_settings_are_read_without_the_sdk():
    code = "import sys; import headwater.brokers.servicebus; assert 'azure.servicebus' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
