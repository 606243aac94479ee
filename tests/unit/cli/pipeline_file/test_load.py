"""From a file to the settings of a pipeline, and every fault of a file in a sentence."""

from datetime import timedelta
from pathlib import Path

import pytest

from headwater.brokers.nats.streams import StreamLimits
from headwater.cli.pipeline_file.load import load
from headwater.errors import SettingsError
from headwater.postgres.connect import complete
from headwater.spark.settings import (
    ChangesSettings,
    ConsoleSinkSettings,
    LaneRule,
    NatsSinkSettings,
    NoopSinkSettings,
    ParquetSinkSettings,
    PostgresSinkSettings,
)

ENVIRON = {"HEADWATER_URL": "postgresql://me:hunter2@db/shop", "TARGET_URL": "postgresql://me:hunter3@db/copy"}
WHOLE = """
name = "shop"
checkpoint = "state/shop"
state_url = "dbname=state"
trigger_interval = "500ms"
[source]
url = "${HEADWATER_URL}"
tables = ["public.*", "sales.orders"]
slot = "shop_slot"
publication = "shop_publication"
lanes = 8
lane_by = "key"
max_rows = 1000
max_bytes = "16MiB"
[transform]
filter = "op <> 'd'"
sql = "select * from changes"
hash = ["public.customers.email"]
salt = "pepper"
[transform.mask]
"public.customers.phone" = "***"
[[sinks]]
type = "postgres"
name = "replica"
url = "${TARGET_URL}"
create_tables = false
[[sinks]]
type = "parquet"
path = "lake"
[[sinks]]
type = "console"
[[sinks]]
type = "noop"
[spark]
master = "local[2]"
"spark.driver.memory" = "2g"
"""
LEAST = """
name = "shop"
[source]
tables = ["orders"]
[[sinks]]
type = "noop"
"""


@pytest.fixture
def read(tmp_path):
    """Load a file with this text."""

    def call(text, environ=ENVIRON):
        path = tmp_path / "headwater.toml"
        path.write_text(text)
        return load(path, environ)

    return call


@pytest.fixture
def faults(read, tmp_path):
    """What is said about a file with this text, without the file's name."""

    def call(text, environ=ENVIRON):
        with pytest.raises(SettingsError) as caught:
            read(text, environ)
        said = str(caught.value)
        assert said.startswith(str(tmp_path / "headwater.toml"))
        assert "hunter" not in said
        return said.removeprefix(str(tmp_path / "headwater.toml")).removeprefix(": ")

    return call


def test_a_file_with_every_key_becomes_settings(read, tmp_path):
    pipeline = read(WHOLE)

    assert (pipeline.name, pipeline.checkpoint) == ("shop", str(tmp_path / "state" / "shop"))
    assert pipeline.state_url == "dbname=state"
    assert pipeline.trigger_interval == timedelta(milliseconds=500)
    source = pipeline.source
    assert (source.url, source.tables) == (ENVIRON["HEADWATER_URL"], ("public.*", "sales.orders"))
    assert (source.slot, source.publication) == ("shop_slot", "shop_publication")
    assert (source.lanes, source.lane_by, source.max_rows, source.max_bytes) == (8, LaneRule.KEY, 1000, 16 << 20)
    transform = pipeline.transform
    assert transform is not None
    assert (transform.filter, transform.sql, transform.function) == ("op <> 'd'", "select * from changes", None)
    assert (transform.mask, transform.hash) == ({"public.customers.phone": "***"}, ("public.customers.email",))
    assert transform.salt == "pepper"
    assert pipeline.sinks == (
        PostgresSinkSettings(name="replica", url=ENVIRON["TARGET_URL"], create_tables=False),
        ParquetSinkSettings(name="parquet", path=str(tmp_path / "lake")),
        ConsoleSinkSettings(name="console"),
        NoopSinkSettings(name="noop"),
    )
    assert (pipeline.master, pipeline.spark) == ("local[2]", {"spark.driver.memory": "2g"})


def test_what_is_left_out_has_its_default(read, tmp_path):
    pipeline = read(LEAST)

    assert pipeline.source.url == pipeline.state_url == complete("")
    assert (pipeline.source.slot, pipeline.source.publication) == ("shop", "shop")
    assert pipeline.checkpoint == str(tmp_path / "checkpoints" / "shop")
    assert (pipeline.transform, pipeline.master, pipeline.spark) == (None, "local[*]", {})


def test_the_publication_is_named_as_the_slot_unless_it_has_a_name(read):
    assert read(LEAST.replace("tables", 'slot = "one"\ntables')).source.publication == "one"


def test_the_state_is_kept_at_the_source_unless_said_otherwise(read):
    assert read(LEAST.replace("tables", 'url = "dbname=here"\ntables')).state_url == "dbname=here"


def test_a_checkpoint_that_is_a_uri_stays_as_it_is(read):
    assert read('checkpoint = "s3a://bucket/shop"\n' + LEAST).checkpoint == "s3a://bucket/shop"


def test_a_path_does_not_depend_on_where_the_program_runs(tmp_path, monkeypatch):
    (tmp_path / "headwater.toml").write_text(LEAST)
    monkeypatch.chdir(tmp_path)

    assert load(Path("headwater.toml"), {}).checkpoint == str(tmp_path / "checkpoints" / "shop")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (LEAST.replace("[source]", "[source]\nlane = 4"), "source.lane: there is no such key; did you mean `lanes`?"),
        ("checkpint = 'x'\n" + LEAST, "checkpint: there is no such key; did you mean `checkpoint`?"),
        (LEAST + 'pth = "x"\n', "sinks[1].pth: there is no such key; there are type, name"),
        ("zzz = 1\n" + LEAST, "zzz: there is no such key; there are name, checkpoint"),
        ('tables = ["a"]\n' + LEAST, "tables: there is no such key here; it belongs to [source]"),
        (
            LEAST.replace("[source]", "[source]\nstate_url = ''"),
            "source.state_url: there is no such key here; it belongs to",
        ),
        (LEAST.replace("[source]", "[source]\nlane_by = 'row'"), "source.lane_by: must be table or key"),
        (
            LEAST.replace("noop", "sqs"),
            "sinks[1].type: must be one of postgres, topic, parquet, nats, rabbitmq, servicebus, kafka, console, noop",
        ),
        (LEAST.replace('type = "noop"', 'name = "x"'), "sinks[1].type: is missing; write one of postgres"),
        (LEAST.replace("noop", "postgres"), "sinks[1].url: is missing"),
        (LEAST.replace('["orders"]', '"orders"'), "source.tables: must be a list"),
        (LEAST.replace('["orders"]', "[]"), "source.tables: must have at least one entry"),
        (LEAST.replace("[source]", "[source]\nlanes = 'many'"), "source.lanes: must be a whole number"),
        (LEAST.replace("[source]", "[source]\nlanes = 0"), "source: lanes must be between 1 and 256"),
        (LEAST.replace("[source]", "[source]\nmax_bytes = '1 ton'"), "source.max_bytes: must be a size such as"),
        (LEAST.replace("[source]", "[source]\nslot = 'Not One'"), "source: 'Not One' cannot be a slot's name"),
        ("trigger_interval = 5\n" + LEAST, "trigger_interval: must be a duration such as"),
        (LEAST.replace('"shop"', '"../shop"'), "name: must be 1 to 63 letters, digits"),
        (LEAST + "[transform]\nsql = 'x'\nfunction = 'y:z'", "transform: there is both `sql` and `function`"),
        (LEAST + "[transform]\nhash = ['email']", "transform: 'email' names no column; write it as schema.table.column"),
        (LEAST + '[transform]\nhash=["a.b.c"]\n[transform.mask]\n"a.b.c"="x"', "transform: column a.b.c is both masked"),
        (LEAST + '[[sinks]]\ntype = "noop"', "sinks: two sinks are called 'noop'; give each a name of its own"),
        (LEAST + '[spark]\nmemory = "2g"', "spark: 'memory' is no setting of Spark"),
        (LEAST + '[spark]\n"spark.speculation" = true', "spark: spark.speculation cannot be switched on"),
    ],
    ids=lambda text: "file" if "\n" in text else text.partition(":")[0],
)
def test_a_fault_is_one_sentence_with_the_key(wrong, said, faults):
    found = faults(wrong)

    assert said in found
    assert "\n" not in found


def test_all_faults_of_a_file_are_told_at_once(faults):
    wrong = LEAST.replace("tables", "tabels").replace("noop", "sqs") + "[transform]\nfilter = 3"

    first, *lines = faults(wrong).splitlines()

    assert first == " has 4 errors:"
    assert [line.split(":")[0].strip() for line in lines] == [
        "source.tables",
        "source.tabels",
        "transform.filter",
        "sinks[1].type",
    ]


def test_toml_that_does_not_parse_is_told_with_line_and_column(faults):
    found = faults('name = "shop"\n[source\n')

    assert "is not valid TOML" in found
    assert "line 2, column 8" in found


def test_a_variable_that_is_not_set_is_named_with_its_key(faults):
    assert faults(WHOLE, {"HEADWATER_URL": "dbname=x"}) == (
        "sinks[1].url: environment variable TARGET_URL is not set; set it, or write the value itself"
    )


def test_a_secret_is_neither_in_an_error_nor_in_the_settings_shown(read, faults):
    shown = repr(read(WHOLE + '"spark.hadoop.fs.s3a.secret.key" = "sesame"\n'))
    assert not [secret for secret in ("hunter2", "hunter3", "pepper", "sesame") if secret in shown]

    # A password with an @ in it would be taken for a host, and shown as one.
    faults(WHOLE, {**ENVIRON, "TARGET_URL": "postgresql://me:hunter2@x@db:y/copy"})
    faults(LEAST.replace("[source]", '[source]\nlanes = "${HEADWATER_URL}"'))
    faults(LEAST.replace("noop", "${HEADWATER_URL}"))


def test_a_url_that_is_malformed_is_named_by_its_key(faults):
    assert faults(WHOLE, {**ENVIRON, "TARGET_URL": "postgresql://a b@/"}).startswith("sinks[1].url: the PostgreSQL conn")


@pytest.mark.parametrize(
    ("name", "said"), [("missing.toml", "does not exist; write one with `headwater init`"), (".", "is a d")]
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, said):
    with pytest.raises(SettingsError, match=said):
        load(tmp_path / name, {})


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "headwater.toml").write_bytes(b"name = '\xff'")

    with pytest.raises(SettingsError, match="no text in UTF-8"):
        load(tmp_path / "headwater.toml", {})


NATS = """
name = "shop"
[source]
tables = ["orders"]
status_interval = "2s"
[[sinks]]
type = "nats"
url = "tls://nats:4222"
creds_file = "keys/user.creds"
tls_ca = "/etc/ca.pem"
timeout = "5s"
max_pending = 100
namespace = "SHOP"
generation = 2
cloudevents = true
replicas = 3
max_age = "24h"
max_bytes = "1GiB"
max_msgs = 1000
retention = "interest"
requests_tables = ["public.orders"]
"""


def test_a_nats_sink_has_its_access_and_its_limits(tmp_path):
    (tmp_path / "shop.toml").write_text(NATS)

    pipeline = load(tmp_path / "shop.toml", {})

    (sink,) = pipeline.sinks
    assert isinstance(sink, NatsSinkSettings)
    assert (sink.name, sink.namespace, sink.generation, sink.encoding) == ("nats", "SHOP", "2", "creek")
    assert sink.access.creds_file == str(tmp_path / "keys" / "user.creds")
    assert (sink.access.tls_ca, sink.access.timeout, sink.access.max_pending) == ("/etc/ca.pem", timedelta(seconds=5), 100)
    assert sink.limits == StreamLimits(
        replicas=3, max_age=timedelta(days=1), max_bytes=1024**3, max_msgs=1000, retention="interest"
    )
    assert (sink.cloudevents, sink.requests, sink.requests_tables) == (True, True, ("public.orders",))
    assert isinstance(pipeline.source, ChangesSettings) and pipeline.source.status_interval == timedelta(seconds=2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('url = "http://nats:4222"', "sinks[1]: a NATS url must look like"),
        ('namespace = "a b"', "sinks[1]: 'a b' cannot be a NATS namespace"),
        ("generation = 3", "sinks[1].generation: must be 1 or 2"),
        ('encoding = "xml"', "sinks[1].encoding: must be creek or json"),
        ('retention = "all"', "sinks[1].retention: must be 'limits', 'interest' or 'workqueue'"),
        ('user = "a"\ntoken = "hunter2"', "sinks[1]: give one of user, token, nkey_file and creds_file"),
        ('lane = "key"', "sinks[1].lane: there is no such key"),
    ],
)
def test_a_fault_of_a_nats_sink_is_said_of_it(tmp_path, wrong, said):
    key = wrong.partition(" ")[0]
    lines = [line for line in NATS.splitlines() if not line.startswith((f"{key} ", "creds_file"))]
    (tmp_path / "shop.toml").write_text("\n".join([*lines, wrong]))

    with pytest.raises(SettingsError) as raised:
        load(tmp_path / "shop.toml", {})

    assert said in str(raised.value)
    assert "hunter2" not in str(raised.value)
