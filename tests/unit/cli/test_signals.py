"""SIGTERM: the first one asks, the second one has its default effect."""

import os
import signal

import pytest

from headwater.cli.signals import Stopped, stop_on_sigterm


def test_the_first_sigterm_sets_the_event_and_gives_the_second_its_default_effect():
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_sigterm() as stopping:
        assert not stopping.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(5)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_can_interrupt_what_waits_and_lets_it_clean_up():
    cleaned = []
    with pytest.raises(Stopped), stop_on_sigterm(interrupt=True):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)

    assert cleaned == [True]


def test_a_stop_is_not_caught_by_those_who_catch_every_error():
    assert not issubclass(Stopped, Exception)


def test_ctrl_c_asks_too_where_it_is_the_usual_end():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_sigterm(or_ctrl_c=True) as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.wait(5)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()

    assert signal.getsignal(signal.SIGINT) is before
