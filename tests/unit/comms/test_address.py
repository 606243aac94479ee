"""E-mail addresses: what is one, what is none, and that nothing in them can end a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.comms.address import Address, parse_address


@pytest.mark.parametrize(
    ("written", "address", "name"),
    [
        ("zoe@example.com", "zoe@example.com", ""),
        (" zoe@example.com ", "zoe@example.com", ""),
        ("<zoe@example.com>", "zoe@example.com", ""),
        ("Zoe <zoe@example.com>", "zoe@example.com", "Zoe"),
        ("Zoë Müller <zoe@example.com>", "zoe@example.com", "Zoë Müller"),
        ('"Doe, John" <john@example.com>', "john@example.com", "Doe, John"),
        ("J. Doe <john@example.com>", "john@example.com", "J. Doe"),
        ("first.last+tag@sub.example.co.uk", "first.last+tag@sub.example.co.uk", ""),
        ("o'brien@example.com", "o'brien@example.com", ""),
        ("info@bücher.example", "info@xn--bcher-kva.example", ""),
        ("info@例え.jp", "info@xn--r8jz45g.jp", ""),
        ("Info <info@bücher.example>", "info@xn--bcher-kva.example", "Info"),
    ],
)
def test_an_address_is_taken_apart(written, address, name):
    assert parse_address(written) == Address(address, name)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "is no e-mail address"),
        ("zoe", "is no e-mail address"),
        ("zoe@", "has a domain"),
        ("@example.com", "is no e-mail address"),
        ("zoe@@example.com", "is no e-mail address"),
        ("a@example.com, b@example.com", "is no e-mail address"),
        ("a@example.com;b@example.com", "is no e-mail address"),
        ("friends: a@example.com;", "is no e-mail address"),
        ("zoe@example.com (home)", "is no e-mail address"),
        ("Doe, John <john@example.com>", "is no e-mail address"),
        ("Zoe <zoe@example.com> x", "is no e-mail address"),
        ("Zoe <zoe@example.com", "is no e-mail address"),
        ("zoe..x@example.com", "is no e-mail address"),
        (".zoe@example.com", "is no e-mail address"),
        ('"zoe x"@example.com', "is no e-mail address"),
        ("zoe x@example.com", "is no e-mail address"),
        ("zoe@exa mple.com", "is no e-mail address"),
        ("zoé@example.com", "before the @ that are not ASCII"),
        ("Zoé <zoé@example.com>", "before the @ that are not ASCII"),
        ("zoe@localhost", "has a domain without a dot"),
        ("zoe@127.0.0.1", "has a domain that is none"),
        ("zoe@[127.0.0.1]", "is no e-mail address"),
        ("zoe@example..com", "has a domain that is none"),
        ("zoe@-example.com", "has a domain that is none"),
        ("zoe@example.com.", "has a domain that is none"),
        ("zoe@exa_mple.com", "has a domain that is none"),
        ("zoe@straße.de", "is read in two ways"),
        (f"{'x' * 65}@example.com", "more than 64 characters before the @"),
        (f"zoe@{'x' * 64}.com", "has a domain that is none"),
        (f"zoe@{'x.' * 130}com", "is longer than 254 bytes"),
        (f"{'Z' * 1000} <zoe@example.com>", "has more than 1000 characters"),
        ("zoe@example.com\n", "has a line break"),
        ("zoe@example.com\r\nBcc: x@example.com", "has a line break"),
        ("Zoe\nBcc: x@example.com <zoe@example.com>", "has a line break"),
        ("Zoe\u2028 <zoe@example.com>", "has a line break"),
        ("zoe\0@example.com", "has a line break or another control character"),
        ("=?utf-8?q?a=0Ab?= <zoe@example.com>", "has an encoded word"),
        ("zo\ud800e@example.com", "another control character"),
    ],
)
def test_what_is_no_address_is_refused_in_a_sentence(written, said):
    with pytest.raises(ValueError, match=said):
        parse_address(written)


@given(st.text(alphabet=st.sampled_from('ab@<>.,;:"()[]\\ =?é\n\r\t'), max_size=30))
def test_whatever_is_written_is_an_address_of_one_ascii_line_or_refused(written):
    try:
        parsed = parse_address(written)
    except ValueError:
        return
    assert parsed.address.isascii() and not set(parsed.address) & set('<>, \r\n"()')
    assert parsed.address.count("@") == 1
    assert len(parsed.name.splitlines()) <= 1
    assert parse_address(parsed.address).address == parsed.address
