"""Reads HTTP from a plain connection, so that a test sees the bytes and not a client's idea of them."""

from asyncio import StreamReader


async def read_head(reader: StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of a response, names in lower case."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status_line, *lines = head.strip().split("\r\n")
    return int(status_line.split()[1]), {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


async def read_chunked(reader: StreamReader) -> bytes:
    """The body of a response with chunked transfer encoding."""
    body = b""
    while size := int(await reader.readline(), 16):
        body += await read_one(reader, size)
    assert await reader.readexactly(2) == b"\r\n"
    return body


async def read_chunk(reader: StreamReader) -> bytes:
    """The next chunk of such a body."""
    return await read_one(reader, int(await reader.readline(), 16))


async def read_one(reader: StreamReader, size: int) -> bytes:
    chunk = await reader.readexactly(size)
    assert await reader.readexactly(2) == b"\r\n"
    return chunk


async def read_response(reader: StreamReader) -> tuple[int, dict[str, str], bytes]:
    """A whole response that says its length."""
    status, headers = await read_head(reader)
    return status, headers, await reader.readexactly(int(headers["content-length"]))
