import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import Lsn


@given(st.integers(0, 2**64 - 1))
def test_a_position_prints_and_reads_back_as_the_same(value):
    assert Lsn.parse(str(Lsn(value))) == value


def test_a_position_prints_as_the_server_does():
    assert str(Lsn(0x16_B374D848)) == "16/B374D848"
    assert str(Lsn(0)) == "0/0"


@pytest.mark.parametrize("text", ["", "16", "16/", "/1", "g/1", "1/123456789", "1/2/3", "-1/2"])
def test_what_is_no_position_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="16/B374D848"):
        Lsn.parse(text)
