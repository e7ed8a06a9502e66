"""Listening, ports in use, and the order of a graceful end."""

import asyncio
import errno
import json
import os
import socket

import aiohttp
import pytest

from hypnos_engine.domain.errors import PortInUse, StartRefused
from hypnos_engine.domain.model import ModelId
from hypnos_engine.server.app import make_app
from hypnos_engine.server.site import Site
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Gate, Script
from tests.server.raw_http import read_chunk, read_chunked, read_head, read_response
from tests.server.running import OPTIONS, chat_bytes, running


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def make_site(port: int = 0, host: str = "127.0.0.1") -> Site:
    return Site(make_app(FakeRuntime(), OPTIONS), host, port)


def refuses(family: socket.AddressFamily, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        return probe.connect_ex((address, port)) in {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}


async def test_loopback_means_both_addresses(loop_factory: LoopFactory) -> None:
    """architecture.md §6: 127.0.0.1 and ::1, on one port; a machine without IPv6 has the first."""
    async with running() as server:
        assert server.address == f"http://127.0.0.1:{server.site.port}"
        for address in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
            _, writer = await asyncio.open_connection(address, server.site.port)
            writer.close()
            await writer.wait_closed()
        port = server.site.port
    assert refuses(socket.AF_INET, "127.0.0.1", port)


async def test_a_port_in_use_is_refused_with_its_number_and_owner(loop_factory: LoopFactory) -> None:
    async with running() as server:
        second = make_site(server.site.port)
        with pytest.raises(PortInUse, match=f"Port {server.site.port} is in use") as refusal:
            await second.start()
        await second.close()
    assert f"(process {os.getpid()})" in refusal.value.message


async def test_every_address_of_both_kinds_is_one_port(loop_factory: LoopFactory) -> None:
    """`::` takes IPv4 too where the system can; the address told answers either way."""
    site = make_site(host="::")
    if not has_ipv6():
        with pytest.raises(StartRefused, match=r"server\.host"):
            await site.start()
        return
    await site.start()
    try:
        assert not refuses(socket.AF_INET6, "::1", site.port)
        both = socket.has_dualstack_ipv6()
        assert refuses(socket.AF_INET, "127.0.0.1", site.port) is not both
        assert site.address == f"http://{'127.0.0.1' if both else '[::1]'}:{site.port}"
        async with aiohttp.ClientSession() as http, http.get(f"{site.address}/health") as response:
            assert response.status == 200
        with pytest.raises(PortInUse):
            await make_site(site.port, "::").start()
    finally:
        await site.close()


async def test_the_address_of_one_ipv6_address_is_in_brackets() -> None:
    site = make_site(host="::1")
    if not has_ipv6():
        with pytest.raises(StartRefused, match=r"server\.host"):
            await site.start()
        return
    await site.start()
    try:
        assert site.address == f"http://[::1]:{site.port}"
        assert refuses(socket.AF_INET, "127.0.0.1", site.port)
    finally:
        await site.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"])
async def test_either_loopback_address_in_use_is_the_port_in_use(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as other:
        other.bind((address, 0))
        other.listen()
        port = other.getsockname()[1]
        site = make_site(port)
        with pytest.raises(PortInUse):
            await site.start()
        if family == socket.AF_INET6:
            assert refuses(socket.AF_INET, "127.0.0.1", port), "the address that was free stayed open"


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
async def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(StartRefused, match=r"server\.host"):
        await make_site(host=host).start()


async def test_all_addresses_can_be_named(loop_factory: LoopFactory) -> None:
    site = make_site(host="0.0.0.0")
    await site.start()
    try:
        assert site.address == f"http://127.0.0.1:{site.port}"
        assert not refuses(socket.AF_INET, "127.0.0.1", site.port)
    finally:
        await site.close()


async def test_draining_lets_a_running_stream_end(loop_factory: LoopFactory) -> None:
    last = Gate()
    async with (
        running(FakeRuntime(fake=Script(gates={1: last}))) as server,
        server.raw(chat_bytes(stream=True)) as (reader, _),
        server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as (idle, _),
        server.raw() as (silent, _),
    ):
        await read_head(reader)
        await read_response(idle)
        await last.reached.wait()
        draining = asyncio.ensure_future(server.site.drain(30))
        assert [await idle.read(), await silent.read()] == [b"", b""], "idle connections close at once"
        assert refuses(socket.AF_INET, "127.0.0.1", server.site.port)
        assert not draining.done()
        last.opened.set()
        assert (await read_chunked(reader)).endswith(b"data: [DONE]\n\n")
        await draining


async def test_what_outlasts_the_drain_is_cut_off_and_told_so(loop_factory: LoopFactory) -> None:
    """§4-25, A-44: a stream gets the error chunk, another request 499; both give their lease back."""
    runtime = FakeRuntime(fake=Script(gates={1: Gate()}))
    async with (
        running(runtime) as server,
        server.raw(chat_bytes(stream=True)) as (stream, _),
        server.raw(chat_bytes()) as (whole, _),
    ):
        await read_head(stream)
        await read_chunk(stream)
        await runtime.until(lambda: runtime.generating == 2)
        await server.site.drain(0)
        assert runtime.idle
        events = (await read_chunked(stream)).split(b"\n\n")
        status, _, body = await read_response(whole)
    assert events[-2:] == [b"data: [DONE]", b""]
    chunk = json.loads(events[-3].removeprefix(b"data: "))
    assert chunk["choices"][0]["finish_reason"] == "error"
    assert "shutting down" in chunk["error"]["message"]
    assert status == 499
    assert json.loads(body)["error"]["type"] == "cancelled"


async def test_a_client_that_reads_nothing_does_not_hold_the_end_up(loop_factory: LoopFactory) -> None:
    first = Gate()
    runtime = FakeRuntime(fake=Script(pieces=("x" * 30_000_000, "y"), gates={0: first, 1: Gate()}))
    async with running(runtime) as server, server.raw(chat_bytes(stream=True)):
        await first.reached.wait()
        first.opened.set()
        for _ in range(20):  # turns of the loop, in which the first piece meets the full socket
            await asyncio.sleep(0)
        assert not runtime.scripts[ModelId("fake")].gates[1].reached.is_set()
        await server.site.drain(0)
        assert runtime.idle


async def test_closing_twice_is_fine() -> None:
    async with running() as server:
        await server.site.close()
        await server.site.close()


async def test_closing_what_never_started_is_fine() -> None:
    await make_site().close()
