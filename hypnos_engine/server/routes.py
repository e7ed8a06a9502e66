"""The table of routes: what serves each one, who may call it and when, and what it takes and answers.

States only; whatever reads it (the router, the checks, the OpenAPI document, the metrics) reads this one table.
"""

from typing import Final

from hypnos_engine.api.schemas.catalog import CatalogList
from hypnos_engine.api.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from hypnos_engine.api.schemas.decisions import DecisionList
from hypnos_engine.api.schemas.downloads import Download, DownloadList, DownloadRequest, ResumeRequest
from hypnos_engine.api.schemas.lifecycle import Health, Ready
from hypnos_engine.api.schemas.memory import KvPark, KvParkRequest, MemoryStatus
from hypnos_engine.api.schemas.memory_events import MemoryEvent
from hypnos_engine.api.schemas.models import ModelEntry, ModelList
from hypnos_engine.api.schemas.placing import (
    FreeRequest,
    HoldAnswer,
    OffloadAnswer,
    OffloadRequest,
    SwitchAnswer,
    TierAnswer,
    TierRequest,
)
from hypnos_engine.api.schemas.pool import AddRequest, PoolAnswer, ReplaceRequest
from hypnos_engine.api.schemas.request_log import Cleared, LogLevelAnswer, LogLevelRequest, LogRecord, RequestLogPage
from hypnos_engine.domain.kinds import Modality
from hypnos_engine.server import (
    asking,
    catalog,
    chat,
    downloads,
    lifecycle,
    memory,
    memory_events,
    metrics,
    models,
    openapi,
    page,
    placing,
    pool,
    request_log,
)
from hypnos_engine.server.exchange import Parameter, Route
from hypnos_engine.server.pool_requests import DRAIN_SECS

MODEL_ID: Final = Parameter("id", "path", "A model's id, percent-encoded where it holds reserved characters.")
INFERENCE_HEADERS: Final = (
    Parameter(
        asking.DEADLINE,
        "header",
        "Longest wait before the start, in ms; refused with 503 when the estimate is longer. Malformed = ignored.",
    ),
    Parameter(
        asking.NEXT_MODEL,
        "header",
        "Id of the model that the caller will ask next: loaded meanwhile where that costs nobody. Unknown = ignored.",
    ),
    Parameter(asking.WORKFLOW, "header", "`name/id` of a multi-step task whose duration is measured."),
    Parameter(asking.WORKFLOW_END, "header", "`true` on the last request of a workflow."),
)

LIFECYCLE: Final = (
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
        "/metrics",
        metrics.show_metrics,
        "What was counted and what is, as Prometheus reads it",
        {200: "text/plain"},
        errors=(401,),
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
)

MODELS: Final = (
    Route("GET", "/v1/models", models.list_models, "Models in service", {200: ModelList}),
    Route(
        "GET",
        "/v1/models/catalog",
        catalog.show_catalog,
        "Every model that Hypnos knows, and what of it is on disk (Hypnos extension)",
        {200: CatalogList},
        parameters=(
            Parameter(
                "modality", "query", "Keeps the entries that serve it, primarily or besides.", choices=tuple(Modality)
            ),
        ),
    ),
    Route(
        "GET",
        "/v1/models/{id:.+}",
        models.show_model,
        "One model in service (Hypnos extension of the contract, as OpenAI has it)",
        {200: ModelEntry},
        parameters=(MODEL_ID,),
    ),
    Route(
        "POST",
        "/v1/models",
        pool.add_model,
        "Take a model into the pool; its files are on disk already (Hypnos extension)",
        {201: PoolAnswer},
        request=AddRequest,
        errors=openapi.PLACING,
        admin=True,
        while_staging=False,
    ),
    Route(
        "PUT",
        "/v1/models/{id:.+}",
        pool.replace_model,
        "Put another model in the place of one, once its running requests have ended (Hypnos extension)",
        {200: PoolAnswer},
        request=ReplaceRequest,
        parameters=(MODEL_ID,),
        errors=openapi.PLACING,
        admin=True,
        while_staging=False,
    ),
    Route(
        "DELETE",
        "/v1/models/{id:.+}",
        pool.remove_model,
        "Take a model out of the pool, once its running requests have ended (Hypnos extension)",
        {200: PoolAnswer},
        parameters=(
            MODEL_ID,
            Parameter(
                DRAIN_SECS, "query", "How long running requests may take to end; 120 when left out.", "number", least=0
            ),
        ),
        errors=openapi.PLACING,
        admin=True,
        while_staging=False,
    ),
    Route(
        "POST",
        "/v1/models/{id:.+}/enable",
        placing.enable_model,
        "Bring a model back into service (Hypnos extension)",
        {200: SwitchAnswer},
        parameters=(MODEL_ID,),
        errors=openapi.PLACING,
        while_staging=False,
    ),
    Route(
        "POST",
        "/v1/models/{id:.+}/disable",
        placing.disable_model,
        "Take a model out of service (Hypnos extension)",
        {200: SwitchAnswer},
        parameters=(MODEL_ID,),
        errors=openapi.PLACING,
        while_staging=False,
    ),
    Route(
        "POST",
        "/v1/models/{id:.+}/moe-offload",
        placing.set_expert_offload,
        "Where a Mixture-of-Experts model's experts run (Hypnos extension)",
        {200: OffloadAnswer},
        request=OffloadRequest,
        parameters=(MODEL_ID,),
        errors=(*openapi.PLACING, 422),
        while_staging=False,
    ),
)

MEMORY: Final = (
    Route(
        "GET",
        "/v1/memory/status",
        memory.show_memory,
        "All tiers and models at this moment (Hypnos extension)",
        {200: MemoryStatus},
    ),
    Route(
        "GET",
        "/v1/memory/events",
        memory_events.stream_memory,
        "Changes of the status as they happen (Hypnos extension)",
        {200: "text/event-stream"},
        parameters=(
            Parameter("Last-Event-ID", "header", "`id` of the last event that was received: the stream goes on there."),
        ),
        errors=(503,),
        streams=MemoryEvent,
        endless=True,
    ),
    Route(
        "GET",
        "/v1/memory/decisions",
        memory_events.list_decisions,
        "What was decided and why (Hypnos extension)",
        {200: DecisionList},
        parameters=(
            Parameter("limit", "query", "How many at most; all that are kept when left out.", "integer", least=1),
        ),
    ),
    Route(
        "POST",
        "/v1/memory/tier",
        placing.move_model,
        "Move a model to a tier (Hypnos extension)",
        {200: TierAnswer},
        request=TierRequest,
        errors=openapi.PLACING,
        while_staging=False,
    ),
    Route(
        "GET",
        "/v1/memory/kv-park",
        placing.show_kv_park,
        "Parked conversations (Hypnos extension)",
        {200: KvPark},
    ),
    Route(
        "POST",
        "/v1/memory/kv-park",
        placing.set_kv_park,
        "How conversations are parked (Hypnos extension)",
        {200: KvPark},
        request=KvParkRequest,
        errors=openapi.PLACING,
        while_staging=False,
    ),
    Route(
        "POST",
        "/v1/memory/free",
        placing.free_memory,
        "Leave the accelerator to its owner (Hypnos extension)",
        {200: HoldAnswer},
        request=FreeRequest,
        errors=openapi.PLACING,
        admin=True,
        while_staging=False,
        optional_body=True,
    ),
    Route(
        "POST",
        "/v1/memory/restore",
        placing.restore_memory,
        "Take the accelerator back into use (Hypnos extension)",
        {200: HoldAnswer},
        errors=openapi.PLACING,
        admin=True,
        while_staging=False,
    ),
)

DOWNLOAD_ID: Final = Parameter("id", "path", "A download's id.")

DOWNLOADS: Final = (
    Route(
        "GET",
        "/v1/downloads",
        downloads.list_downloads,
        "Downloads of models (Hypnos extension)",
        {200: DownloadList},
        admin=True,
    ),
    Route(
        "POST",
        "/v1/downloads",
        downloads.start_download,
        "Download a model's files (Hypnos extension)",
        {200: Download},
        request=DownloadRequest,
        errors=openapi.DOWNLOADING,
        admin=True,
    ),
    Route(
        "POST",
        "/v1/downloads/{id}/pause",
        downloads.pause_download,
        "Stop a download and keep what has come (Hypnos extension)",
        {200: Download},
        parameters=(DOWNLOAD_ID,),
        errors=openapi.DOWNLOADING,
        admin=True,
    ),
    Route(
        "POST",
        "/v1/downloads/{id}/resume",
        downloads.resume_download,
        "Go on with a download (Hypnos extension)",
        {200: Download},
        request=ResumeRequest,
        parameters=(DOWNLOAD_ID,),
        errors=openapi.DOWNLOADING,
        admin=True,
        optional_body=True,
    ),
    Route(
        "POST",
        "/v1/downloads/{id}/cancel",
        downloads.cancel_download,
        "Stop a download and remove what has come (Hypnos extension)",
        {200: Download},
        parameters=(DOWNLOAD_ID,),
        errors=openapi.DOWNLOADING,
        admin=True,
    ),
)

LOGS: Final = (
    Route(
        "GET",
        "/v1/logs/{id}",
        request_log.show_log,
        "One call, by the `x-request-id` of its answer (Hypnos extension)",
        {200: LogRecord},
        parameters=(Parameter("id", "path", "The `x-request-id`."),),
    ),
    Route(
        "GET",
        "/v1/logs",
        request_log.list_log,
        "The newest calls of models (Hypnos extension)",
        {200: RequestLogPage},
        parameters=(
            Parameter("model", "query", "Keeps the calls of one model."),
            Parameter("route", "query", "Keeps the calls of one route, as this document names it."),
            Parameter(
                "status",
                "query",
                "`error` also keeps streams that failed midway, `ok` does not.",
                choices=request_log.STATUSES,
            ),
            Parameter("key", "query", "Keeps the calls of one key, by its label."),
            Parameter("limit", "query", "How many at most; all when left out.", "integer", least=1),
        ),
    ),
    Route("DELETE", "/v1/logs", request_log.clear_log, "Empty the request log (Hypnos extension)", {200: Cleared}),
    Route(
        "POST",
        "/v1/logs/level",
        request_log.set_log_level,
        "What the next calls keep of themselves (Hypnos extension)",
        {200: LogLevelAnswer},
        request=LogLevelRequest,
        errors=(408, 503),
    ),
)

INFERENCE: Final = (
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
        inference=Modality.TEXT,
    ),
)

ALL_ROUTES: Final = (*LIFECYCLE, *MODELS, *MEMORY, *DOWNLOADS, *LOGS, *INFERENCE)
