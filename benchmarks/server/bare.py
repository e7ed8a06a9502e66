"""What Hypnos is compared with: an aiohttp handler that writes bytes which were prepared before, and does nothing else.

Speaks HTTP as Hypnos does (same routes, same bytes, same pace) and knows no model, no key, no limit and no log.
"""

import argparse
import asyncio
import json
from typing import Final

import uvloop
from aiohttp import web

STEP_S: Final = 0.005
"""Pause before each token, the same as in the demonstration engine of Hypnos."""


class Prepared:
    """The bytes of one stream and of one whole answer, as Hypnos sends them."""

    def __init__(self, events: list[bytes], answer: bytes) -> None:
        self.events = events
        self.answer = answer


PREPARED: Final = web.AppKey("prepared", Prepared)


async def complete(request: web.Request) -> web.StreamResponse:
    """Answer with one token, or with a stream of all of them."""
    prepared = request.app[PREPARED]
    body = await request.read()
    if b'"stream":true' not in body:
        await asyncio.sleep(STEP_S)
        return web.Response(body=prepared.answer, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in prepared.events:
        await asyncio.sleep(STEP_S)
        await response.write(event)
    await response.write_eof()
    return response


async def serve(port: int, prepared: Prepared) -> None:
    """Serve until the process is ended."""
    app = web.Application()
    app[PREPARED] = prepared
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Read the bytes to send from stdin, one JSON object, then serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    given = json.loads(input())
    prepared = Prepared([event.encode() for event in given["events"]], given["answer"].encode())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(port, prepared))


if __name__ == "__main__":
    main()
