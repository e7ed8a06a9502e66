"""The HTTP application: the routes of the table, what handlers reach through it, and the checks that requests pass.

Wires only; decides nothing about a request and starts nothing.
"""

from aiohttp import web

from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.runtime.lease import Runtime
from hypnos_engine.server import middlewares, page
from hypnos_engine.server.accounting import ACCOUNTS, Accounts
from hypnos_engine.server.bodies import BODIES, Bodies
from hypnos_engine.server.catalog import CATALOG, CatalogDesk
from hypnos_engine.server.exchange import LATENCIES, LIFECYCLE, OPTIONS, ROUTES, RUNTIME, Lifecycle, Route
from hypnos_engine.server.options import ServerOptions
from hypnos_engine.server.request_log import REQUEST_LOG, RequestLog
from hypnos_engine.server.routes import ALL_ROUTES
from hypnos_engine.telemetry.decided import Decided
from hypnos_engine.telemetry.latency import Latencies

__all__ = ["ALL_ROUTES", "make_app"]


def make_app(
    runtime: Runtime,
    options: ServerOptions,
    routes: tuple[Route, ...] = ALL_ROUTES,
    *,
    latencies: Latencies | None = None,
    decided: Decided | None = None,
    shelf: Shelf | None = None,
) -> web.Application:
    """Make the application that serves `runtime`. Made anew for each server; not started.

    `latencies` is where the times of workflows come from, `decided` where the scheduler's decisions are counted; times
    of routes are counted into the former.
    Without a `shelf` there is no catalog.
    """
    app = web.Application(
        middlewares=[middlewares.serve_request],
        client_max_size=options.max_body_bytes,
    )
    app[RUNTIME] = runtime
    app[OPTIONS] = options
    app[LIFECYCLE] = Lifecycle()
    app[ROUTES] = routes
    app[LATENCIES] = latencies or Latencies()
    app[REQUEST_LOG] = RequestLog(options.request_log, options.spool_dir)
    app[ACCOUNTS] = Accounts(app[REQUEST_LOG], app[LATENCIES], decided or Decided())
    app[BODIES] = Bodies(options)
    if shelf is not None:
        app[CATALOG] = CatalogDesk(shelf)
    app.on_cleanup.append(_close_bodies)
    app.on_cleanup.append(_stop_log)
    if (found := page.load_page()) is not None:
        app[page.PAGE] = found
    for route in routes:
        if route.method == "GET":
            app.router.add_get(route.path, route.handler, expect_handler=middlewares.meet_expectation)
        else:
            app.router.add_route(route.method, route.path, route.handler, expect_handler=middlewares.meet_expectation)
    app.on_response_prepare.append(middlewares.set_headers)
    return app


async def _stop_log(app: web.Application) -> None:
    await app[REQUEST_LOG].stop()


async def _close_bodies(app: web.Application) -> None:
    await app[BODIES].readers.close()
