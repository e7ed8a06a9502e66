"""Reads what a request's headers say about its place among others: deadline, workflow, next model (contract §1.2).

A header that makes no sense is as if it were not sent: none of them is worth refusing a request for.
"""

import re
from typing import Final

from aiohttp import web

from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.lease import Ask
from hypnos_engine.scheduler.events import Workflow
from hypnos_engine.server.exchange import exchange_of

DEADLINE: Final = "x-hypnos-deadline-ms"
NEXT_MODEL: Final = "x-hypnos-next-model"
WORKFLOW: Final = "x-hypnos-workflow"
WORKFLOW_END: Final = "x-hypnos-workflow-end"

_NAME_MAX_CHARS: Final = 64
_RUN_MAX_CHARS: Final = 128
_WORKFLOW: Final = re.compile(
    rf"(?P<name>[\w.:-]{{1,{_NAME_MAX_CHARS}}})/(?P<run>[!-~]{{1,{_RUN_MAX_CHARS}}})", re.ASCII
)


def ask_of(request: web.Request, model: str, *, cells: int | None = None) -> Ask:
    """What the scheduler has to know of a request for `model` that wants `cells` of KV cache, or whatever there is."""
    headers = request.headers
    key = exchange_of(request).key
    following = headers.get(NEXT_MODEL, "").strip()
    return Ask(
        model=ModelId(model),
        key_label=key.label,
        deadline_s=_deadline_s(headers.get(DEADLINE)),
        weight=key.weight,
        workflow=_workflow(headers.get(WORKFLOW), headers.get(WORKFLOW_END)),
        next_model=ModelId(following) if following else None,
        cells=cells or 0,
    )


def _deadline_s(header: str | None) -> float | None:
    """The longest wait before the start."""
    try:
        wait_ms = float(header or "")
    except ValueError:
        return None
    return wait_ms / 1000 if 0 <= wait_ms < float("inf") else None


def _workflow(header: str | None, end: str | None) -> Workflow | None:
    found = _WORKFLOW.fullmatch((header or "").strip())
    if found is None:
        return None
    return Workflow(found["name"], found["run"], ends=(end or "").strip().lower() == "true")
