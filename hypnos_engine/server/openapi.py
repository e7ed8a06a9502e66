"""`/openapi.json`: the routes and their schemas as OpenAPI 3.1, made from the table that serves them.

States only what the route table and the wire schemas say; holds no second description of a field.
"""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from hypnos_engine.api.error_table import ERROR_TABLE
from hypnos_engine.api.schemas.errors import ErrorBody
from hypnos_engine.server.answers import JSON, json_response
from hypnos_engine.server.exchange import OPTIONS, ROUTES, Parameter, Route

REF: Final = "#/components/schemas/{name}"
EVERYWHERE: Final = (400, 403, 404, 405, 413, 500)
"""Statuses that a route can answer whatever it does: refused Host or origin, broken HTTP, a fault of the server."""
WITH_KEY: Final = (401,)
INFERENCE: Final = (404, 408, 429, 499, 503, 504, 507)
PLACING: Final = INFERENCE
"""Whoever moves a model waits for it, and may meet whatever a load can meet."""
DOWNLOADING: Final = (408, 429, 499, 503)
PLAIN_TEXT: Final = frozenset({408, 413})

# The document is a tree of JSON objects whose shape OpenAPI fixes; it leaves the process as it is.
Json = dict[str, Any]


async def show_openapi(request: web.Request) -> web.Response:
    """The document. Built on each call: it is small and asked for rarely."""
    return json_response(openapi_document(request.app[ROUTES], request.app[OPTIONS].version))


def openapi_document(routes: tuple[Route, ...], version: str) -> Json:
    """Describe every route with its parameters, bodies, statuses and errors."""
    types = _types_of(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    known = dict(zip(types, schemas, strict=True))
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.public_path, {})[route.method.lower()] = _operation(route, known)
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Hypnos",
            "version": version,
            "description": "OpenAI-compatible routes, and Hypnos extensions, for the models of this computer.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": _headers(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    as_sent: Json = msgspec.json.decode(msgspec.json.encode(document))  # defaults may hold what JSON does not know
    return as_sent


def statuses_of(route: Route) -> tuple[int, ...]:
    """Every status that a route can answer, successes first."""
    errors = {*EVERYWHERE, *route.errors, *(WITH_KEY if route.needs_key else ())}
    return (*route.answers, *sorted(errors - set(route.answers)))


def _types_of(routes: tuple[Route, ...]) -> list[Any]:
    types: dict[Any, None] = {ErrorBody: None}
    for route in routes:
        for schema in (route.request, route.streams, *route.answers.values()):
            if schema is not None and not isinstance(schema, str):
                types[schema] = None
    return list(types)


def _operation(route: Route, known: dict[Any, Json]) -> Json:
    operation: Json = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "responses": {str(status): _response(route, status, known) for status in statuses_of(route)},
        # An empty requirement beside the scheme: without configured keys none is asked for.
        "security": [{"bearer": []}, {}] if route.needs_key else [],
    }
    if route.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.request is not None:
        content = {JSON: {"schema": known[route.request]}}
        operation["requestBody"] = {"required": not route.optional_body, "content": content}
    return operation


def _response(route: Route, status: int, known: dict[Any, Json]) -> Json:
    headers: Json = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
    content: Json = {}
    if status in route.answers:
        schema = route.answers[status]
        if isinstance(schema, str):
            content[schema] = {"schema": {"type": "object" if schema == JSON else "string"}}
        else:
            content[JSON] = {"schema": known[schema]}
        if route.streams is not None:
            content["text/event-stream"] = {"schema": _event(known[route.streams], endless=route.endless)}
        if route.streams is not None and not route.endless:
            headers["x-hypnos-estimated-wait-ms"] = {"$ref": "#/components/headers/x-hypnos-estimated-wait-ms"}
    else:
        content[JSON] = {"schema": known[ErrorBody]}
        if status in PLAIN_TEXT:
            content["text/plain"] = {"schema": {"type": "string"}}
        if status in {429, 503}:
            headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
        if status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = {"$ref": "#/components/headers/WWW-Authenticate"}
    return {"description": _description(status), "headers": headers, "content": content}


def _event(schema: Json, *, endless: bool) -> Json:
    """One event of a stream: a chunk as JSON, or the literal that ends it; numbered where the stream has no end."""
    chunk = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    if endless:
        numbered: Json = {"id": {"type": "string", "pattern": "^[0-9]+$"}, "data": chunk}
        return {"type": "object", "required": ["id", "data"], "properties": numbered}
    return {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [{"const": "[DONE]"}, chunk]}}}


def _description(status: int) -> str:
    types = sorted({row.wire_type for row in ERROR_TABLE.values() if row.status == status and row.wire_type})
    phrase = "Client closed request" if status == 499 else HTTPStatus(status).phrase
    return f"{phrase}: {', '.join(types)}" if types else phrase


def _parameter(parameter: Parameter) -> Json:
    schema: Json = {"type": parameter.schema}
    if parameter.least is not None:
        schema["minimum"] = parameter.least
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.about,
        "schema": schema,
    }


def _headers() -> Json:
    text, whole = {"type": "string"}, {"type": "integer", "minimum": 0}
    return {
        "x-request-id": {
            "description": "Names the request in the server's log.",
            "schema": {"type": "string", "pattern": "^req-[0-9a-f]{32}$"},
        },
        "x-hypnos-estimated-wait-ms": {
            "description": "The wait that was estimated when the request arrived; absent while nothing is known.",
            "schema": whole,
        },
        "Retry-After": {"description": "Whole seconds after which another try makes sense.", "schema": whole},
        "WWW-Authenticate": {"description": "How to send the key.", "schema": text},
    }
