"""Packed bodies: what is accepted, how anything else is refused, and that nothing unpacks beyond the limit."""

import gzip
import json
import zlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.server.packing import STEP_BYTES, Unpacking, packing_of
from tests.loops import LoopFactory
from tests.server.raw_http import read_response
from tests.server.running import KEYS, chat_body, running

PACKS: list[Callable[[bytes], bytes]] = [gzip.compress, zlib.compress]
BODY = msgspec.json.encode(chat_body())
GZIP, ZLIB = gzip.compress(BODY), zlib.compress(BODY)
RAW_DEFLATE = zlib.compress(BODY, wbits=-zlib.MAX_WBITS)


def request(encoding: str, body: bytes, *, chunked: bool = False) -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: {encoding}\r\n"
    )
    if chunked:
        return f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


PACKED = {
    "gzip": ("gzip", GZIP),
    "upper case": ("GZIP", GZIP),
    "old name": ("x-gzip", GZIP),
    "zlib": ("deflate", ZLIB),
    "bare deflate": ("deflate", RAW_DEFLATE),
    "identity": ("identity", BODY),
    "empty": ("", BODY),
    "beside identity": ("gzip, identity", GZIP),
}


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("name", PACKED)
async def test_a_packed_body_is_read(loop_factory: LoopFactory, name: str, chunked: bool) -> None:
    encoding, body = PACKED[name]
    async with running() as server, server.raw(request(encoding, body, chunked=chunked)) as (reader, _):
        status, _, answer = await read_response(reader)
    assert status == 200, answer
    assert server.runtime.said[0].messages[0].text() == "Hi"


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "foo", "gzip, gzip", "gzip, br", "\u00e9"])
async def test_another_packing_is_refused_with_those_that_work(encoding: str, chunked: bool) -> None:
    async with (
        running() as server,
        server.raw(request(encoding, BODY, chunked=chunked), request("gzip", GZIP)) as (reader, _),
    ):
        status, _, answer = await read_response(reader)
        assert (await read_response(reader))[0] == 200, "the connection goes on"
    assert status == 400
    assert "gzip or deflate" in json.loads(answer)["error"]["message"]


BROKEN = {
    "no gzip": ("gzip", b"notgzi"),
    "not packed": ("gzip", BODY),
    "one byte": ("gzip", b"\x1f"),
    "cut gzip": ("gzip", GZIP[:-12]),
    "cut checksum": ("gzip", GZIP[:-1]),
    "wrong checksum": ("gzip", GZIP[:-8] + b"\0" * 8),
    "more after gzip": ("gzip", GZIP + b"junk"),
    "two pieces": ("gzip", GZIP * 2),
    "no deflate": ("deflate", b"garbage!"),
    "one byte of deflate": ("deflate", b"x"),
    "cut zlib": ("deflate", ZLIB[:-8]),
    "more after zlib": ("deflate", ZLIB + b"x"),
    "cut deflate": ("deflate", RAW_DEFLATE[:-3]),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_body_that_does_not_unpack_is_told_so(loop_factory: LoopFactory, name: str) -> None:
    encoding, body = BROKEN[name]
    async with running() as server, server.raw(request(encoding, body)) as (reader, _):
        status, headers, answer = await read_response(reader)
    assert status == 400
    assert "does not unpack" in json.loads(answer)["error"]["message"]
    assert headers["server"] == "hypnos/9.8.7"


async def test_a_packing_is_looked_at_after_the_key() -> None:
    async with running(keys=KEYS) as server, server.raw(request("br", BODY)) as (reader, _):
        status, _, _ = await read_response(reader)
    assert status == 401


def unpack(body: bytes, packing: str, *, pieces_of: int) -> bytes:
    unpacking = Unpacking(packing)
    pieces = [body[start : start + pieces_of] for start in range(0, len(body), pieces_of)]
    unpacked = b"".join(part for piece in pieces for part in unpacking.feed(piece))
    unpacking.finish()
    return unpacked


async def test_a_small_body_that_unpacks_beyond_the_limit_is_413() -> None:
    """§1.4-03."""
    bomb = gzip.compress(b" " * 2_000_000)
    async with running(max_body_bytes=100_000) as server, server.raw(request("gzip", bomb)) as (reader, _):
        status, headers, answer = await read_response(reader)
    assert status == 413
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert b"limits.max_body_bytes (100000 bytes)" in answer


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_the_limit_is_exact(pack: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if pack is gzip.compress else "deflate"
    statuses = []
    for filler in (0, 1):
        body = BODY + b" " * (1000 - len(BODY) + filler)
        async with running(max_body_bytes=1000) as server, server.raw(request(encoding, pack(body))) as (reader, _):
            status, _, _ = await read_response(reader)
            statuses.append(status)
    assert statuses == [200, 413]


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]), st.integers(1, 20))
def test_any_bytes_unpack_or_are_refused(body: bytes, packing: str, pieces_of: int) -> None:
    try:
        unpack(body, packing, pieces_of=pieces_of)
    except InvalidRequest:
        return


@given(st.binary(max_size=2000), st.sampled_from(PACKS), st.integers(1, 300))
def test_a_body_unpacks_however_it_is_cut(body: bytes, pack: Callable[[bytes], bytes], pieces_of: int) -> None:
    packing = "gzip" if pack is gzip.compress else "deflate"
    assert unpack(pack(body), packing, pieces_of=pieces_of) == body


def test_unpacking_goes_in_steps_whatever_was_promised() -> None:
    bomb = zlib.compress(b" " * 5_000_000)
    parts = list(map(len, Unpacking("deflate").feed(bomb)))
    assert max(parts) <= STEP_BYTES
    assert sum(parts) == 5_000_000


def test_several_headers_are_one_list() -> None:
    assert packing_of(["identity", "gzip"]) == "gzip"
    with pytest.raises(InvalidRequest, match="'gzip, deflate'"):
        packing_of(["gzip", "deflate"])
