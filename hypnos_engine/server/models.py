"""`GET /v1/models` and `GET /v1/models/{id}`: the models in service, as OpenAI lists them (contract §6.1)."""

from aiohttp import web

from hypnos_engine.api.schemas.models import ModelEntry, ModelList
from hypnos_engine.domain.errors import ModelDisabled, ModelNotFound
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.lease import Runtime
from hypnos_engine.runtime.snapshot import ModelView
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.exchange import LIFECYCLE, RUNTIME
from hypnos_engine.server.telemetry import placement_plan


async def list_models(request: web.Request) -> web.Response:
    """Enabled models only, in the order of the configuration."""
    created = request.app[LIFECYCLE].created
    views = request.app[RUNTIME].models()
    return json_response(ModelList(data=tuple(_entry(view, created) for view in views if view.enabled)))


async def show_model(request: web.Request) -> web.Response:
    """One entry of the list; ids arrive percent-decoded."""
    view = find_model(request.app[RUNTIME], request.match_info["id"])
    return json_response(_entry(view, request.app[LIFECYCLE].created))


def find_model(runtime: Runtime, model: str) -> ModelView:
    """The model, if it is in service. Raises ModelNotFound or ModelDisabled."""
    view = runtime.model(ModelId(model))
    if view is None:
        raise ModelNotFound(f"There is no model {model[:200]!r}. GET /v1/models lists those in service.")
    if not view.enabled:
        raise ModelDisabled(f"The model '{model}' is switched off. Enable it, or choose another from GET /v1/models.")
    return view


def _entry(view: ModelView, created: int) -> ModelEntry:
    return ModelEntry(
        id=view.spec.id,
        created=created,
        modality=view.spec.modality,
        current_tier=view.tier,
        placement=placement_plan(view.placement),
        active_leases=view.active_leases,
    )
