"""The HTTP application: the table of routes, and the order in which requests pass the checks.

Wires only; decides nothing about a request and starts nothing.
"""

from typing import Final

from aiohttp import web

from hypnos_engine.api.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from hypnos_engine.api.schemas.lifecycle import Health, Ready
from hypnos_engine.api.schemas.memory import MemoryStatus
from hypnos_engine.api.schemas.models import ModelEntry, ModelList
from hypnos_engine.runtime.lease import Runtime
from hypnos_engine.server import chat, lifecycle, memory, middlewares, models, openapi, page
from hypnos_engine.server.bodies import BODIES, Bodies
from hypnos_engine.server.exchange import LIFECYCLE, OPTIONS, ROUTES, RUNTIME, Lifecycle, Parameter, Route
from hypnos_engine.server.options import ServerOptions

MODEL_ID: Final = Parameter("id", "path", "A model's id, percent-encoded where it holds reserved characters.")
INFERENCE_HEADERS: Final = (
    Parameter(
        "x-hypnos-deadline-ms",
        "header",
        "Longest wait before the start, in ms; refused with 503 when the estimate is longer. Malformed = ignored.",
    ),
    Parameter("x-hypnos-next-model", "header", "Id of the model that the caller will ask next. Accepted and ignored."),
    Parameter("x-hypnos-workflow", "header", "`name/id` of a multi-step task. Accepted and ignored."),
    Parameter("x-hypnos-workflow-end", "header", "`true` on the last request of a workflow. Accepted and ignored."),
)

ALL_ROUTES: Final = (
    Route("GET", "/", page.show_page, "Status page", {200: "text/html"}, needs_key=False),
    Route("GET", "/health", lifecycle.show_health, "Whether the process lives", {200: Health}, needs_key=False),
    Route(
        "GET",
        "/ready",
        lifecycle.show_readiness,
        "Whether the startup models are in place",
        {200: Ready, 503: Ready},
        needs_key=False,
    ),
    Route(
        "GET",
        "/openapi.json",
        openapi.show_openapi,
        "This document",
        {200: "application/json"},
        needs_key=False,
    ),
    Route("GET", "/v1/models", models.list_models, "Models in service", {200: ModelList}),
    Route(
        "GET",
        "/v1/models/{id:.+}",
        models.show_model,
        "One model in service (Hypnos extension of the contract, as OpenAI has it)",
        {200: ModelEntry},
        parameters=(MODEL_ID,),
    ),
    Route(
        "GET",
        "/v1/memory/status",
        memory.show_memory,
        "All tiers and models at this moment (Hypnos extension)",
        {200: MemoryStatus},
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        chat.complete_chat,
        "Answer a conversation",
        {200: ChatCompletion},
        request=ChatRequest,
        parameters=INFERENCE_HEADERS,
        errors=openapi.INFERENCE,
        while_staging=False,
        streams=ChatChunk,
    ),
)


def make_app(runtime: Runtime, options: ServerOptions, routes: tuple[Route, ...] = ALL_ROUTES) -> web.Application:
    """Make the application that serves `runtime`. Made anew for each server; not started."""
    app = web.Application(
        middlewares=[middlewares.serve_request],
        client_max_size=options.max_body_bytes,
    )
    app[RUNTIME] = runtime
    app[OPTIONS] = options
    app[LIFECYCLE] = Lifecycle()
    app[ROUTES] = routes
    app[BODIES] = Bodies(options)
    app.on_cleanup.append(_close_bodies)
    if (found := page.load_page()) is not None:
        app[page.PAGE] = found
    for route in routes:
        if route.method == "GET":
            app.router.add_get(route.path, route.handler, expect_handler=middlewares.meet_expectation)
        else:
            app.router.add_route(route.method, route.path, route.handler, expect_handler=middlewares.meet_expectation)
    app.on_response_prepare.append(middlewares.set_headers)
    return app


async def _close_bodies(app: web.Application) -> None:
    await app[BODIES].readers.close()
