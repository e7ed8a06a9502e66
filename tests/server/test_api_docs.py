"""`docs/api.md` names every route, error, header and field that exists, and no route that does not."""

import re
from pathlib import Path

import msgspec
import pytest

from hypnos_engine.api.error_table import ERROR_TABLE
from hypnos_engine.api.memory_fold import MOVING_FIELDS
from hypnos_engine.api.schemas import (
    catalog,
    chat,
    decisions,
    downloads,
    errors,
    lifecycle,
    memory,
    memory_events,
    models,
    placing,
    pool,
    request_log,
    telemetry,
)
from hypnos_engine.runtime.feed import MOST_READERS, RING
from hypnos_engine.server.app import ALL_ROUTES
from hypnos_engine.server.exchange import Route
from hypnos_engine.server.memory_events import DECISIONS_MAX
from hypnos_engine.server.middlewares import EXPOSED_HEADERS
from hypnos_engine.server.openapi import openapi_document, statuses_of
from hypnos_engine.telemetry.latency import MOST_WORKFLOWS

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))
WORDS = {word for code in CODE for word in re.findall(r"[\w-]+", code)} | set(re.findall(r'"(\w+)"', PAGE))
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]

SCHEMAS = [
    struct
    for module in (
        catalog,
        chat,
        decisions,
        downloads,
        errors,
        lifecycle,
        memory,
        memory_events,
        models,
        placing,
        pool,
        request_log,
        telemetry,
    )
    for struct in vars(module).values()
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and struct.__module__ == module.__name__
]
# Speech answers carry these; they are exposed to browsers ahead of the routes that send them.
SPEECH_HEADERS = {"x-hypnos-previous-tier", "x-hypnos-gpu-layers", "x-hypnos-switch-ms", "x-hypnos-inference-ms",
                  "x-hypnos-audio-secs", "x-hypnos-rtf"}  # fmt: skip


def test_the_routes_of_the_page_are_the_routes_of_the_server() -> None:
    documented = {route for row in ROWS for route in re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", row[0])}
    assert documented == {f"{route.method} {route.public_path}" for route in ALL_ROUTES}


def test_every_error_is_a_row_with_its_status_type_and_exit_code() -> None:
    rows = [row for row in ROWS if row[0].isdigit()]
    for error, row in ERROR_TABLE.items():
        if row.exit_code >= 40:
            assert re.search(rf"\b{row.exit_code}\b", PAGE), error
            continue
        wire_type = f"`{row.wire_type}`" if row.wire_type else "plain text"
        assert any(
            int(cells[0]) == row.status and wire_type in cells[1] and str(row.exit_code) in re.findall(r"\d+", cells[3])
            for cells in rows
        ), error


def test_every_status_of_the_openapi_document_is_on_the_page() -> None:
    documented = {int(row[0]) for row in ROWS if row[0].isdigit()}
    answered = {status for route in ALL_ROUTES for status in statuses_of(route) if status >= 400}
    assert answered <= documented


def test_every_header_is_on_the_page() -> None:
    document = openapi_document(ALL_ROUTES, "0")
    sent = {header.strip() for header in EXPOSED_HEADERS.split(",")} - SPEECH_HEADERS
    taken = {parameter.name for route in ALL_ROUTES for parameter in route.parameters if parameter.where == "header"}
    assert sent | taken | set(document["components"]["headers"]) <= WORDS


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_field_is_on_the_page(schema: type[msgspec.Struct]) -> None:
    assert set(schema.__struct_encode_fields__) - WORDS == set()


@pytest.mark.parametrize("route", ALL_ROUTES, ids=lambda route: f"{route.method} {route.public_path}")
def test_the_page_says_who_may_call_a_route_and_when(route: Route) -> None:
    row = next(row for row in ROWS if f"`{route.method} {route.public_path}`" in row[0])
    needs = "admin" if route.admin else "yes" if route.needs_key else "no"
    assert row[2:] == [needs, "works" if route.while_staging else "503"]


def test_every_event_is_on_the_page() -> None:
    assert {event.__struct_config__.tag for event in memory_events.EVENTS} <= CODE


def test_what_no_event_is_sent_for_is_on_the_page() -> None:
    assert set(MOVING_FIELDS) <= WORDS


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    for number in (RING, MOST_READERS, DECISIONS_MAX, MOST_WORKFLOWS):
        assert re.search(rf"\b{number}\b", PAGE)


def test_every_value_of_the_request_is_on_the_page() -> None:
    assert {*chat.ROLES, *chat.REASONING_EFFORTS, *chat.TOOL_CHOICES} <= WORDS
