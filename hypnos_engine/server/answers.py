"""How values and errors become responses: JSON as msgspec writes it, errors as the table says (contract §4).

Never picks a status itself and never shows a stack trace.
"""

import math
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import hdrs, web

from hypnos_engine.api.decoding import shorten
from hypnos_engine.api.error_table import INVALID, row_of
from hypnos_engine.api.schemas.errors import ErrorBody, ErrorDetail
from hypnos_engine.domain.errors import (
    DeadlineUnmeetable,
    HypnosError,
    InvalidApiKey,
    ModelBusy,
    PayloadTooLarge,
    RateLimited,
)

JSON = "application/json"

_encode = msgspec.json.Encoder().encode


def stamp(response: web.StreamResponse, request_id: str, version: str) -> None:
    """Set what every response carries, those to bytes that are no HTTP included."""
    headers = response.headers
    headers["x-request-id"] = request_id
    headers[hdrs.SERVER] = f"hypnos/{version}"
    headers["X-Content-Type-Options"] = "nosniff"
    headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    headers[hdrs.VARY] = hdrs.ORIGIN


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Answer with a schema's JSON."""
    return web.Response(body=_encode(value), status=status, headers=headers, content_type=JSON)


def error_response(error: HypnosError, *, multipart: bool = False) -> web.Response:
    """Answer with an error. `multipart` says how the request's body came: a 413 is plain text for JSON bodies."""
    row = row_of(error)
    headers = _headers(error)
    if row.wire_type is None or (isinstance(error, PayloadTooLarge) and not multipart):
        return web.Response(text=error.message, status=row.status, headers=headers)
    return json_response(_body(error, row.wire_type), status=row.status, headers=headers)


def http_error_response(error: web.HTTPException, method: str, path: str) -> web.Response:
    """Answer what the router refused: unknown paths, wrong methods, unmet expectations."""
    headers: dict[str, str] = {}
    if error.status == HTTPStatus.NOT_FOUND:
        detail = ErrorDetail(shorten(f"There is no route {method} {path}. GET /openapi.json lists them."), "not_found")
    elif isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        headers[hdrs.ALLOW] = allowed
        detail = ErrorDetail(shorten(f"{path} does not answer {method}; it answers {allowed}."), INVALID)
    else:
        detail = ErrorDetail(f"{error.status} {error.reason}", INVALID)
    return json_response(ErrorBody(detail), status=error.status, headers=headers)


def _body(error: HypnosError, wire_type: str) -> ErrorBody:
    if isinstance(error, InvalidApiKey):
        return ErrorBody(ErrorDetail(error.message, wire_type, param=None, code=error.code))
    if isinstance(error, RateLimited):
        return ErrorBody(ErrorDetail(error.message, wire_type, param=None, code=error.limit))
    return ErrorBody(ErrorDetail(error.message, wire_type))


def _headers(error: HypnosError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if isinstance(error, InvalidApiKey):
        headers[hdrs.WWW_AUTHENTICATE] = 'Bearer realm="hypnos"'
    wait_s = error.retry_after_s
    if isinstance(error, DeadlineUnmeetable):
        wait_s = wait_s or 1.0  # the contract promises the header
    if wait_s is not None and not isinstance(error, ModelBusy):  # and promises that a full queue has none
        headers[hdrs.RETRY_AFTER] = str(max(1, math.ceil(wait_s)))
    return headers
