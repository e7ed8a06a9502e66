"""`/health` and `/ready`: whether the process lives, and whether it serves yet (contract §3)."""

import time

from aiohttp import web

from hypnos_engine.api.schemas.lifecycle import Health, Ready
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.exchange import LIFECYCLE, OPTIONS, RUNTIME


async def show_health(request: web.Request) -> web.Response:
    """Always 200 while the process answers."""
    uptime_s = time.monotonic() - request.app[LIFECYCLE].started_s
    return json_response(Health(version=request.app[OPTIONS].version, uptime_secs=int(uptime_s)))


async def show_readiness(request: web.Request) -> web.Response:
    """200 once the startup models are in place, 503 before that and while shutting down."""
    if request.app[LIFECYCLE].draining:
        return json_response(Ready(False, "shutting down"), status=503)
    if request.app[RUNTIME].staging:
        return json_response(Ready(False, "startup tier initialization in progress"), status=503)
    return json_response(Ready(True))
