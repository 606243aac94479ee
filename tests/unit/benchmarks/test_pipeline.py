"""The benchmark of pipelines: what it counts, and what its processes are told, and how."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.pipeline.latency import Sighting, latencies
from benchmarks.pipeline.memory import Sample, growth
from benchmarks.pipeline_process import NOOP, POSTGRES, SOURCE_VARIABLE, TARGET_VARIABLE, pipeline_file, running
from headwater.cli.pipeline_file.load import load
from headwater.spark.settings import NoopSinkSettings, PostgresSinkSettings


def test_a_row_is_late_by_the_time_from_its_commit_to_the_first_look_that_found_it_or_a_later_one():
    sightings = [Sighting(0.0, 0), Sighting(1.5, 10), Sighting(2.0, 12), Sighting(2.5, 13)]

    assert latencies([1.0, 1.25, 1.75], 10, sightings) == [0.5, 0.75, 0.25]


def test_a_row_that_was_never_seen_has_no_latency():
    with pytest.raises(IndexError):
        latencies([1.0, 1.25], 10, [Sighting(0.0, 0), Sighting(1.5, 10)])


def test_memory_is_shown_for_each_tenth_of_the_backlog_without_the_end_of_the_processes():
    samples = [sample(0, 100), sample(500_000, 300), sample(900_000, 200), sample(2_500_000, 400), sample(10_000_000, 50)]

    found = growth(samples, 10_000_000)

    assert [found[f"backlog_java_mb_at_{number}m"] for number in (1, 2, 3, 4, 10)] == [300, 300, 400, 400, 400]
    assert found["backlog_python_mb_at_3m"] == 401
    assert len(found) == 20


def test_a_short_backlog_is_told_by_the_thousand():
    assert "backlog_java_mb_at_100k" in growth([sample(0, 1)], 1_000_000)


@pytest.mark.parametrize(("sink", "kind"), [(NOOP, NoopSinkSettings), (POSTGRES, PostgresSinkSettings)])
def test_the_pipeline_file_is_one_that_the_program_takes_and_holds_no_password(tmp_path, sink, kind):
    file = tmp_path / "headwater.toml"
    file.write_text(pipeline_file("bench", "public.t", sink))
    urls = {SOURCE_VARIABLE: "postgresql://me:hunter2@h/d", TARGET_VARIABLE: "postgresql://me:hunter2@h/e"}

    settings = load(file, urls)

    assert (settings.source.url, settings.source.slot, settings.source.publication) == (
        urls[SOURCE_VARIABLE],
        "bench",
        "bench",
    )
    assert isinstance(settings.sinks[0], kind)
    assert "hunter2" not in file.read_text()


def test_a_pipeline_gets_its_urls_where_other_users_cannot_read_them(monkeypatch, tmp_path):
    started: dict[str, Any] = {}

    class Process:
        def __init__(self, command, **options):
            started.update(options, command=command)

        def __enter__(self):
            return SimpleNamespace(kill=lambda: None)

        def __exit__(self, *_raised):
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)

    with running(tmp_path, "", {SOURCE_VARIABLE: "postgresql://me:hunter2@h/d"}, "--once"):
        pass

    assert started["env"][SOURCE_VARIABLE] == "postgresql://me:hunter2@h/d"
    assert "hunter2" not in " ".join(started["command"])
    assert started["command"][-1] == "--once"


def sample(rows: int, megabytes: float) -> Sample:
    return Sample(rows, megabytes, megabytes + 1, 0)
