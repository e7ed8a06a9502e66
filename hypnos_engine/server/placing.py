"""The routes that move, switch and hold models by hand (contract §6.5, §6.6, §14.2, §14.3; `free` and `restore`).

Each one asks the runtime and tells what it answered; none decides whether a model may go.
"""

from aiohttp import web

from hypnos_engine.api.schemas import placing as wire
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.snapshot import HoldView
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.bodies import read_json, read_optional_json
from hypnos_engine.server.exchange import RUNTIME
from hypnos_engine.server.memory import kv_park
from hypnos_engine.server.placing_requests import Hold
from hypnos_engine.server.readings import FREE, MOVE, OFFLOAD, PARK
from hypnos_engine.server.telemetry import placement_plan


async def move_model(request: web.Request) -> web.Response:
    """Bring a model to a tier; answers once it is there."""
    move = await read_json(request, MOVE)
    view = await request.app[RUNTIME].move(ModelId(move.model), move.tier, context_len=move.context_len)
    return json_response(wire.TierAnswer(view.spec.id, placement_plan(view.placement)))


async def enable_model(request: web.Request) -> web.Response:
    """Bring a model back into service."""
    return await _switch(request, enabled=True)


async def disable_model(request: web.Request) -> web.Response:
    """Take a model out of service."""
    return await _switch(request, enabled=False)


async def _switch(request: web.Request, *, enabled: bool) -> web.Response:
    view = await request.app[RUNTIME].switch(ModelId(request.match_info["id"]), enabled=enabled)
    return json_response(wire.SwitchAnswer(view.spec.id, view.enabled, placement_plan(view.placement)))


async def set_expert_offload(request: web.Request) -> web.Response:
    """Say where a model's experts run."""
    offload = await read_json(request, OFFLOAD)
    change = await request.app[RUNTIME].set_expert_offload(ModelId(request.match_info["id"]), offload.mode)
    spec = change.view.spec
    placement = placement_plan(change.view.placement)
    return json_response(
        wire.OffloadAnswer(spec.id, offload.mode, "now" if change.applies_now else "next_load", placement)
    )


async def free_memory(request: web.Request) -> web.Response:
    """Empty the accelerator and leave it alone."""
    wish = await read_optional_json(request, FREE, Hold(None))
    return json_response(_hold(await request.app[RUNTIME].free(wish.for_s)))


async def restore_memory(request: web.Request) -> web.Response:
    """Take the accelerator back into use."""
    return json_response(_hold(await request.app[RUNTIME].restore()))


async def show_kv_park(request: web.Request) -> web.Response:
    """What is parked."""
    return json_response(kv_park(request.app[RUNTIME].parking()))


async def set_kv_park(request: web.Request) -> web.Response:
    """Change how conversations are parked."""
    change = await read_json(request, PARK)
    view = await request.app[RUNTIME].set_parking(enabled=change.enabled, max_bytes=change.max_bytes)
    return json_response(kv_park(view))


def _hold(view: HoldView) -> wire.HoldAnswer:
    moved = tuple(wire.MovedModel(one.model, one.from_tier, one.to_tier) for one in view.moved)
    return wire.HoldAnswer(view.held, view.until_unix_ms, moved)
