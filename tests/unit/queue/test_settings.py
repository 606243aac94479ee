"""Settings are checked when they are made."""

import inspect
import re
from dataclasses import fields
from datetime import timedelta

import pytest

from headwater.errors import SettingsError
from headwater.queue import EnqueuerSettings, WorkerSettings

TOO_LITTLE = {int: 0, timedelta: timedelta(0)}


@pytest.mark.parametrize("kind", [WorkerSettings, EnqueuerSettings])
def test_what_is_given_by_default_is_right(kind):
    assert kind() == kind()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, one.name, TOO_LITTLE[one.type])
        for kind in (WorkerSettings, EnqueuerSettings)
        for one in fields(kind)
        if one.type in TOO_LITTLE and one.name != "linger"
    ],
)
def test_nothing_is_too_little(kind, name, value):
    with pytest.raises(SettingsError, match=f"{name} of {kind.__name__}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, one.name) for kind in (WorkerSettings, EnqueuerSettings) for one in fields(kind)]
)
def test_nothing_is_of_another_kind(kind, name):
    with pytest.raises(SettingsError, match=f"{name} of {kind.__name__} is '5'"):
        kind(**{name: "5"})


DURATIONS = [
    (kind, one.name) for kind in (WorkerSettings, EnqueuerSettings) for one in fields(kind) if one.type is timedelta
]


@pytest.mark.parametrize(("kind", "name"), DURATIONS)
def test_a_duration_may_be_a_text(kind, name):
    assert kind(**{name: "3s"}) == kind(**{name: timedelta(seconds=3)})


def test_a_text_that_is_too_little_is_told_as_what_it_is():
    with pytest.raises(SettingsError, match="poll of WorkerSettings is 0 s; give a time that is more than 0 s"):
        WorkerSettings(poll="0s")


@pytest.mark.parametrize("kind", [WorkerSettings, EnqueuerSettings])
def test_those_who_check_types_know_all_that_may_be_given(kind):
    text = inspect.getsource(kind)
    declared = re.findall(r"^ +(\w+): [^=]+ = \.\.\.,$", text, re.MULTILINE)
    assert declared == [one.name for one in fields(kind)]


def test_a_lease_is_long_enough_to_be_renewed():
    with pytest.raises(SettingsError, match=r"lease of WorkerSettings is 0\.05 s; give 0\.1 s or more"):
        WorkerSettings(lease=timedelta(milliseconds=50))


def test_nobody_has_to_linger():
    assert EnqueuerSettings(linger=timedelta(0)).linger == timedelta(0)
    with pytest.raises(SettingsError, match="linger"):
        EnqueuerSettings(linger=-timedelta(seconds=1))
