"""Sizes, hosts, origins, moments: what is read as what."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.config.addresses import ALLOWED_HOST, BIND_HOST, SECRET, WEB_ORIGIN, digest_of
from hypnos_engine.config.choices import AUTO
from hypnos_engine.config.kinds import MOST_BYTES, AutoOr, Moment, Number, Refused, Size, Switch, Whole, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24G", 25769803776),
        ("64g", 64 << 30),
        ("512MiB", 512 << 20),
        ("512 MB", 512 << 20),
        (" 1.5G ", 3 << 29),
        ("0", 0),
        ("10B", 10),
        ("1k", 1024),
        ("0.1K", 102),
        ("1T", 1 << 40),
        ("1024T", MOST_BYTES),
    ],
)
def test_a_size_has_a_binary_suffix(text: str, size: int) -> None:
    """§19-37: `24G` is 25769803776 bytes, as in the contract's example."""
    assert Size().read(text) == size
    assert Size().read_text(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "24X", "24 G i", "1e9", "٢G", "1.G", ".5G", "0x10", "1_000", "1025T", "9" * 400 + "G"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="expected a size"):
        Size().read(text)


@given(st.integers(0, MOST_BYTES - 1) | st.integers(0, 1023).map(lambda count: count << 40))
def test_a_size_reads_back_as_it_is_shown(size: int) -> None:
    assert Size().read(size) == size
    assert Size().read(size_text(size).replace("bytes", "B")) == size


@pytest.mark.parametrize("value", [True, None, 1.0, "1", [], {}, pytest.param(10**5000, id="huge"), float("nan")])
def test_a_whole_number_is_nothing_else(value: object) -> None:
    with pytest.raises(Refused):
        Whole(0, 10).read(value)


def test_numbers_switches_and_auto() -> None:
    assert (Number(0, 1).read(1), Number(0, 1).read_text("0.5")) == (1.0, 0.5)
    assert [Switch().read_text(word) for word in ("true", "On", "0", "no")] == [True, True, False, False]
    assert (AutoOr(Whole(1, 4)).read("auto"), AutoOr(Whole(1, 4)).read_text("3")) == (AUTO, 3)
    with pytest.raises(Refused):
        Switch().read_text("maybe")
    with pytest.raises(Refused):
        AutoOr(Whole(1, 4)).read("3")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "fe80::1%eth0", "0.0.0.0", "localhost", "my-box.local", "a_b", "x."]
)
def test_what_can_be_listened_on(host: str) -> None:
    assert BIND_HOST.read(host) == host


def test_brackets_around_an_address_are_taken_off() -> None:
    assert BIND_HOST.read("[::1]") == "::1"


@pytest.mark.parametrize(
    "host", ["", " ", "a b", "a/b", "http://a", "256.1.1.1", "1.2.3", "[::1", "-a", "a..b", "a:80", "ä"]
)
def test_what_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(Refused):
        BIND_HOST.read(host)


@pytest.mark.parametrize("host", ["nas.local", "nas.local:80", "[::1]:9999", "10.0.0.1"])
def test_a_host_may_have_a_port(host: str) -> None:
    assert ALLOWED_HOST.read(host.upper()) == host


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://a.example", "http://host:*", "app://obsidian.md"])
def test_an_origin_may_have_a_wildcard_port(origin: str) -> None:
    """§1.3-04."""
    assert WEB_ORIGIN.read(origin) == origin


@pytest.mark.parametrize("origin", ["*", "null", "localhost", "http://*", "http://*.a.de", "http://a:0", "http://a:x"])
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(Refused):
        WEB_ORIGIN.read(origin)


def test_a_path_behind_an_origin_is_taken_off_in_the_suggestion() -> None:
    with pytest.raises(Refused) as caught:
        WEB_ORIGIN.read("http://a:80/x")
    assert caught.value.suggestion == 'write "http://a:80"'


def test_moments_are_utc() -> None:
    assert Moment().read("2027-01-31") == datetime(2027, 1, 31, tzinfo=UTC)
    assert Moment().read("2027-01-31T01:00:00+02:00") == datetime(2027, 1, 30, 23, tzinfo=UTC)
    with pytest.raises(Refused, match="calendar"):
        Moment().read("0001-01-01T00:00:00+05:00")


@given(st.text("".join(map(chr, range(33, 127))), min_size=1, max_size=100))
def test_a_key_is_kept_as_its_digest_without_the_blanks_around_it(key: str) -> None:
    """§2-06."""
    assert SECRET.read(f" {key}\t") == digest_of(key)


@pytest.mark.parametrize("key", ["", "  ", "a b", "ü", "a\nb", "x" * 513, 5, ["a"]])
def test_a_refused_key_is_not_repeated(key: object) -> None:
    with pytest.raises(Refused) as caught:
        SECRET.read(key)
    assert str(key) not in caught.value.message or not str(key).strip()
