"""`headwater init`: what it writes can be loaded, and nothing is overwritten by accident."""

import re
import tomllib
from importlib.resources import files

import pytest

from headwater.cli.app import run
from headwater.cli.pipeline_file.load import load
from headwater.cli.pipeline_file.model import File, PostgresSink, Source, Transform


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_loads_as_it_is_written(here, capsys):
    assert run(["init"]) == 0

    pipeline = load(here / "headwater.toml", {"HEADWATER_URL": "postgresql://me@db/shop"})
    assert (pipeline.name, pipeline.source.slot, pipeline.source.tables) == ("shop", "shop", ("public.*",))
    assert [sink.name for sink in pipeline.sinks] == ["console"]
    assert capsys.readouterr().out.startswith("wrote headwater.toml;")


def test_what_is_commented_out_loads_too():
    """Every line that begins with `# ` and is TOML: what a user gets by taking the `# ` away."""
    lines = files("headwater.cli").joinpath("headwater.toml").read_text(encoding="utf-8").splitlines()
    setting = re.compile(r'# (\[+[a-z.]+\]+|"?[a-z_.]+"? = .*)$')
    text = "\n".join(found[1] if (found := setting.match(line)) else line for line in lines)
    text = text.replace('function = "my_module:my_function"', "")

    content = tomllib.loads(text)

    File.model_validate(content)
    assert content.keys() == File.model_fields.keys()
    assert content["source"].keys() == Source.model_fields.keys()
    assert content["transform"].keys() == Transform.model_fields.keys() - {"function"}
    assert content["sinks"][1].keys() == PostgresSink.model_fields.keys() - {"create_tables", "table"}


def test_a_directory_gets_a_file_of_the_usual_name(here):
    (here / "pipelines").mkdir()

    assert run(["init", "pipelines"]) == 0
    assert (here / "pipelines" / "headwater.toml").exists()


def test_a_file_that_is_there_is_left_alone_unless_forced(here, capsys):
    (here / "headwater.toml").write_text("mine")

    assert run(["init"]) == 2
    assert (here / "headwater.toml").read_text() == "mine"
    assert "overwrite it with --force" in capsys.readouterr().err

    assert run(["init", "--force"]) == 0
    assert (here / "headwater.toml").read_text() != "mine"


def test_a_place_that_is_not_there_is_named(here, capsys):
    assert run(["init", "nowhere/shop.toml"]) == 2
    assert "cannot write nowhere/shop.toml: No such file or directory" in capsys.readouterr().err
