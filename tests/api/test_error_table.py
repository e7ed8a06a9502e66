"""Every error of the tree has a status, a type and an exit code, and they are those of the contract (§4)."""

import pytest

from hypnos_engine.api.error_table import ERROR_TABLE, error_from_answer, row_of
from hypnos_engine.domain import errors as e

# Contract §4, transcribed; 422 is §6.6's. A type of None is a plain-text answer.
CONTRACT: dict[tuple[int, str | None], str] = {
    (400, "invalid_request_error"): "malformed body, unknown value, limit exceeded, modality mismatch",
    (401, "invalid_request_error"): "missing, malformed or unknown key",
    (403, "permission_denied"): "changing the model pool without an admin key",
    (404, "model_not_found"): "unknown model id",
    (404, "model_disabled"): "configured but switched off",
    (404, "not_found"): "unknown document, picture or log record",
    (408, None): "request_timeout_secs elapsed before the headers",
    (413, "payload_too_large"): "a multipart body above max_body_bytes",
    (422, "invalid_request_error"): "unknown expert offload mode",
    (429, "model_busy"): "more than max_queue_per_model requests",
    (429, "rate_limit_error"): "per-key limit",
    (499, "cancelled"): "the client left or the server shuts down",
    (500, "server_error"): "the engine failed",
    (503, "model_not_available"): "staging, or not servable as configured",
    (503, "deadline_unmeetable"): "the estimated wait exceeds the deadline",
    (504, "timeout"): "an engine-side timeout",
    (507, "insufficient_vram_or_ram"): "does not fit beside the leased models",
    (507, "process_memory_cap"): "would exceed max_process_memory_bytes",
    (507, "device_out_of_memory"): "the device ran out of memory mid-request",
}


def test_every_error_of_the_tree_has_a_row() -> None:
    assert set(ERROR_TABLE) == set(e.every_error())


def test_the_statuses_and_types_are_exactly_those_of_the_contract() -> None:
    assert {(row.status, row.wire_type) for row in ERROR_TABLE.values()} == set(CONTRACT)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (e.InvalidRequest, (400, "invalid_request_error")),
        (e.UnknownOffloadMode, (422, "invalid_request_error")),
        (e.InvalidApiKey, (401, "invalid_request_error")),
        (e.PermissionDenied, (403, "permission_denied")),
        (e.ModelNotFound, (404, "model_not_found")),
        (e.ModelDisabled, (404, "model_disabled")),
        (e.NotFound, (404, "not_found")),
        (e.RequestTimedOut, (408, None)),
        (e.PayloadTooLarge, (413, "payload_too_large")),
        (e.ModelBusy, (429, "model_busy")),
        (e.RateLimited, (429, "rate_limit_error")),
        (e.Cancelled, (499, "cancelled")),
        (e.EngineFailed, (500, "server_error")),
        (e.LoadFailed, (500, "server_error")),
        (e.WorkerDied, (500, "server_error")),
        (e.ModelNotAvailable, (503, "model_not_available")),
        (e.DeadlineUnmeetable, (503, "deadline_unmeetable")),
        (e.EngineTimeout, (504, "timeout")),
        (e.InsufficientMemory, (507, "insufficient_vram_or_ram")),
        (e.ProcessMemoryCap, (507, "process_memory_cap")),
        (e.DeviceOutOfMemory, (507, "device_out_of_memory")),
    ],
)
def test_each_error_has_its_own_answer(error: type[e.HypnosError], answer: tuple[int, str | None]) -> None:
    row = ERROR_TABLE[error]
    assert (row.status, row.wire_type) == answer


def test_exit_codes_are_small_and_never_success() -> None:
    assert all(0 < row.exit_code < 64 for row in ERROR_TABLE.values())


def test_exit_codes_tell_errors_apart_unless_they_share_an_answer() -> None:
    answers_by_code: dict[int, set[tuple[int, str | None]]] = {}
    for row in ERROR_TABLE.values():
        answers_by_code.setdefault(row.exit_code, set()).add((row.status, row.wire_type))
    shared = {code: answers for code, answers in answers_by_code.items() if len(answers) > 1}
    assert shared == {2: {(400, "invalid_request_error"), (422, "invalid_request_error")}}


@pytest.mark.parametrize("answer", CONTRACT)
def test_a_client_gets_the_same_kind_of_error_back(answer: tuple[int, str | None]) -> None:
    error = error_from_answer(*answer, "words", 3.0)
    assert (row_of(error).status, row_of(error).wire_type) == answer
    assert (error.message, error.retry_after_s) == ("words", 3.0)
    assert not isinstance(error, e.StartRefused)


@pytest.mark.parametrize(("status", "kind"), [(418, e.RequestRefused), (502, e.EngineFailed)])
def test_an_answer_of_no_row_is_told_by_its_class(status: int, kind: type[e.HypnosError]) -> None:
    assert type(error_from_answer(status, "odd", "words", None)) is kind
