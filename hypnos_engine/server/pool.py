"""`POST /v1/models`, `PUT /v1/models/{id}`, `DELETE /v1/models/{id}`: the pool of models as clients change it (§6.4).

Asks the pool and tells what it answered; decides nothing about models and waits as long as the pool does.
"""

from http import HTTPStatus
from typing import Final

from aiohttp import web
from msgspec import UNSET

from hypnos_engine.api.schemas.pool import PoolAnswer
from hypnos_engine.domain.errors import NotFound
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.pool import Change, FromBlock, FromCatalog, Pool, Source
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.bodies import read_json
from hypnos_engine.server.exchange import exchange_of
from hypnos_engine.server.pool_requests import DRAIN_DEFAULT_S, DRAIN_SECS, PoolWish, drain_of
from hypnos_engine.server.readings import ADD, REPLACE
from hypnos_engine.server.telemetry import placement_plan

POOL: Final = web.AppKey("pool", Pool)


async def add_model(request: web.Request) -> web.Response:
    """Take a model into the pool."""
    wish = await read_json(request, ADD)
    return _answer(await _pool(request).add(_source(wish)), HTTPStatus.CREATED)


async def replace_model(request: web.Request) -> web.Response:
    """Put another model in the place of one."""
    wish = await read_json(request, REPLACE)
    exchange_of(request).stop_clock()  # `drain_secs` is the bound from here on
    model = ModelId(request.match_info["id"])
    return _answer(await _pool(request).replace(model, _source(wish), wish.drain_s))


async def remove_model(request: web.Request) -> web.Response:
    """Take a model out of the pool."""
    text = request.query.get(DRAIN_SECS)
    drain_s = DRAIN_DEFAULT_S if text is None else drain_of(text)
    exchange_of(request).stop_clock()
    return _answer(await _pool(request).remove(ModelId(request.match_info["id"]), drain_s))


def _pool(request: web.Request) -> Pool:
    pool = request.app.get(POOL)
    if pool is None:
        raise NotFound("The models of this server are not changed while it runs.")
    return pool


def _source(wish: PoolWish) -> Source:
    return FromBlock(wish.config) if wish.config is not None else FromCatalog(wish.catalog or "")


def _answer(change: Change, status: int = HTTPStatus.OK) -> web.Response:
    placement = UNSET if change.view is None else placement_plan(change.view.placement)
    return json_response(PoolAnswer(change.model, change.action.value, change.persisted, placement), status=status)
