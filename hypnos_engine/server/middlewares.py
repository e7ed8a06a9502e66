"""What happens to every request before and after its handler, in the order of checks that the wire fixes.

Order: Host, CORS preflight, foreign origin, key 401, admin 403, declared body size 413, staging 503; then the handler
checks body 400, model 404 and modality 400, and the runtime queue 429 and deadline 503. No middleware reads a body.
"""

import asyncio
import logging

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Handler as NextHandler

from hypnos_engine.domain.errors import (
    Cancelled,
    HypnosError,
    ModelNotAvailable,
    PermissionDenied,
    RequestTimedOut,
)
from hypnos_engine.journal import Trace
from hypnos_engine.server.accounting import ACCOUNTS
from hypnos_engine.server.answers import error_response, http_error_response, stamp
from hypnos_engine.server.bodies import too_large
from hypnos_engine.server.exchange import (
    LIFECYCLE,
    OPTIONS,
    ROUTES,
    RUNTIME,
    Exchange,
    Route,
    client_left,
    exchange_of,
)
from hypnos_engine.server.keys import check_admin, find_key, host_is_allowed, origin_is_allowed
from hypnos_engine.server.options import ServerOptions

log = logging.getLogger("hypnos.http")

SAFE_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
CORS_METHODS = "GET, POST, OPTIONS"
EXPOSED_HEADERS = ", ".join(
    (
        "x-request-id",
        "Retry-After",
        "x-hypnos-estimated-wait-ms",
        "x-hypnos-previous-tier",
        "x-hypnos-gpu-layers",
        "x-hypnos-switch-ms",
        "x-hypnos-inference-ms",
        "x-hypnos-audio-secs",
        "x-hypnos-rtf",
    )
)
STAGING_MESSAGE = (
    "Hypnos is still bringing its startup models into place; retry shortly (GET /ready tells when it is done)."
)
CLIENT_GONE = 499
GONE_MESSAGE = "The client left before its answer was complete."


@web.middleware
async def serve_request(request: web.Request, handler: NextHandler) -> web.StreamResponse:
    """The only middleware: account for the request, check it, and turn whatever ends it into an answer.

    One for all, because each layer would be one more frame to wake for everything that a handler waits for.
    """
    exchange = exchange_of(request)
    exchange.task = asyncio.current_task()
    exchange.route = _route_of(request)
    app = request.app
    options, running, accounts = app[OPTIONS], app[LIFECYCLE].running, app[ACCOUNTS]
    running.add(exchange)
    trace = Trace(exchange.id)
    try:
        if _guard_origin(request, options):
            return _told(request, exchange, web.Response(status=204))
        _check_access(request, exchange, options)
        accounts.begin(exchange)
        _check_readiness(request, exchange, options)
        limit = exchange.limit = asyncio.timeout(options.request_timeout_s)
        async with limit:
            return _told(request, exchange, await handler(request))
    except HypnosError as error:
        return _refused(request, exchange, error)
    except web.HTTPRequestEntityTooLarge:
        return _refused(request, exchange, too_large(options.max_body_bytes))
    except web.HTTPException as error:
        return _told(request, exchange, http_error_response(error, request.method, request.path))
    except asyncio.CancelledError:
        if exchange.was_cut():
            return _refused(request, exchange, Cancelled("The server is shutting down and ended this request."))
        log.info("%s %s %s %s: the client left", exchange.id, request.method, request.rel_url.raw_path, CLIENT_GONE)
        accounts.end(request, exchange, CLIENT_GONE, Cancelled(GONE_MESSAGE))
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and exchange.limit is not None and exchange.limit.expired():
            return _refused(request, exchange, _timed_out(options))
        if client_left(request):  # the connection broke under the handler
            accounts.end(request, exchange, CLIENT_GONE, Cancelled(GONE_MESSAGE))
            return web.Response(status=CLIENT_GONE)
        log.exception("%s %s failed", exchange.id, request.rel_url.raw_path)
        internal = HypnosError(f"Internal error. The server's log has the details under {exchange.id}.")
        return _refused(request, exchange, internal)
    finally:
        trace.end()
        running.discard(exchange)


def _guard_origin(request: web.Request, options: ServerOptions) -> bool:
    """Refuse names and pages that do not belong here. True for a preflight, which is answered without a key."""
    host = request.headers.get(hdrs.HOST)
    if options.loopback and not host_is_allowed(host, options.allowed_hosts):
        raise PermissionDenied(
            "This server answers to localhost only. Add the name it was called by to server.allowed_hosts."
        )
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None:
        return False
    if not origin_is_allowed(origin, host, options.allowed_origins):
        if request.method not in SAFE_METHODS:
            raise PermissionDenied("Pages of this origin may not call the server. Add it to server.allowed_origins.")
        return False
    return _is_preflight(request)


def _check_access(request: web.Request, exchange: Exchange, options: ServerOptions) -> None:
    """401 and 403. Everything under /v1 needs a key, routes that do not exist included."""
    needs_key = exchange.route.needs_key if exchange.route else request.path.startswith("/v1")
    if needs_key:
        exchange.key = find_key(request.headers.get(hdrs.AUTHORIZATION), options.keys)
        exchange.identified = True
        if exchange.route is not None and exchange.route.admin:
            check_admin(exchange.key)


def _check_readiness(request: web.Request, exchange: Exchange, options: ServerOptions) -> None:
    """Declared body size, and staging."""
    if request.content_length is not None and request.content_length > options.max_body_bytes:
        raise too_large(options.max_body_bytes)
    if exchange.route is not None and not exchange.route.while_staging:
        if request.app[LIFECYCLE].draining:
            raise ModelNotAvailable("Hypnos is shutting down.", retry_after_s=5)
        if request.app[RUNTIME].staging:
            raise ModelNotAvailable(STAGING_MESSAGE, retry_after_s=5)


def _told(request: web.Request, exchange: Exchange, response: web.StreamResponse) -> web.StreamResponse:
    """Account for an answer: a stream is out by now, and a whole one is about to be handed to the socket."""
    request.app[ACCOUNTS].answered(request, exchange, response)
    return response


def _refused(request: web.Request, exchange: Exchange, error: HypnosError) -> web.Response:
    """Answer with an error and account for it."""
    response = error_response(error, multipart=request.content_type.startswith("multipart/"))
    request.app[ACCOUNTS].answered(request, exchange, response, error)
    return response


def _timed_out(options: ServerOptions) -> RequestTimedOut:
    return RequestTimedOut(
        f"No answer within {options.request_timeout_s:g} s (limits.request_timeout_secs). "
        "Ask for less, or lower max_tokens."
    )


async def meet_expectation(request: web.Request) -> web.StreamResponse | None:
    """Before the checks: a client that waits for permission to send its body gets it, other expectations a 417."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        return http_error_response(web.HTTPExpectationFailed(), request.method, request.path)
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # what counts as sent begins with the answer
    return None


async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal before any response's headers go out, those of refusals included."""
    exchange = exchange_of(request)
    options = request.app[OPTIONS]
    stamp(response, exchange.id, options.version)
    if exchange.estimated_wait_ms is not None:
        response.headers["x-hypnos-estimated-wait-ms"] = f"{exchange.estimated_wait_ms:.0f}"
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None:
        _set_cors(request, response, origin, options)


def _set_cors(request: web.Request, response: web.StreamResponse, origin: str, options: ServerOptions) -> None:
    headers = response.headers
    if not origin_is_allowed(origin, request.headers.get(hdrs.HOST), options.allowed_origins):
        return
    headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
    headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED_HEADERS
    if _is_preflight(request):
        headers[hdrs.VARY] = f"{hdrs.ORIGIN}, {hdrs.ACCESS_CONTROL_REQUEST_HEADERS}"
        headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = CORS_METHODS
        wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
        headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted or "*"
        headers[hdrs.ACCESS_CONTROL_MAX_AGE] = "600"
        if request.headers.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"


def _is_preflight(request: web.Request) -> bool:
    return request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers


def _route_of(request: web.Request) -> Route | None:
    handler = request.match_info.handler
    for route in request.app[ROUTES]:
        if route.handler is handler:
            return route
    return None
