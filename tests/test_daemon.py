"""What the composition root decides itself: which addresses are this computer's own, and where a first start writes."""

import socket
from collections.abc import Iterable
from typing import Any

import pytest

from hypnos_engine.daemon import is_loopback
from hypnos_engine.domain.errors import StartRefused

Names = dict[str, tuple[str, ...]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """What names stand for here, as a hosts file would say it; anything else is asked of the system."""
    written: Names = {}
    ask = socket.getaddrinfo

    def look_up(host: Any, port: Any, *rest: Any, **more: Any) -> Iterable[Any]:
        if host not in written:
            return ask(host, port, *rest, **more)
        return [entry for address in written[host] for entry in ask(address, port, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return written


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1"]
)
async def test_this_computer_s_own_addresses_are_loopback(host: str) -> None:
    assert await is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
async def test_what_others_can_reach_is_not(host: str) -> None:
    assert not await is_loopback(host)


async def test_a_name_is_what_all_its_addresses_are(names: Names) -> None:
    names.update({"127.evil.example": ("192.0.2.1",), "mine": ("127.0.1.1", "::1"), "both": ("127.0.0.1", "192.0.2.1")})
    assert not await is_loopback("127.evil.example")
    assert await is_loopback("mine")
    assert not await is_loopback("both")


@pytest.mark.parametrize("host", ["127.nowhere.invalid", "a" * 64 + ".invalid", "a..b"])
async def test_a_name_that_stands_for_nothing_is_told(host: str) -> None:
    with pytest.raises(StartRefused, match=r"server\.host"):
        await is_loopback(host)
