"""What each error of the tree is outside the program: an HTTP status, a wire `type` and an exit code of the command.

The one place that decides this. It never looks at messages, and a class that is missing here fails a test.
"""

from dataclasses import dataclass
from typing import Final

from hypnos_engine.domain import errors as e


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of error leaves the program."""

    status: int
    wire_type: str | None
    """`error.type` of the JSON body (contract §4); None where the answer is plain text."""
    exit_code: int


INVALID = "invalid_request_error"
SERVER_ERROR = "server_error"

ERROR_TABLE: Final[dict[type[e.HypnosError], Row]] = {
    e.HypnosError: Row(500, SERVER_ERROR, 1),
    # The client has to change something.
    e.RequestRefused: Row(400, INVALID, 2),
    e.InvalidRequest: Row(400, INVALID, 2),
    e.UnknownOffloadMode: Row(422, INVALID, 2),
    e.InvalidApiKey: Row(401, INVALID, 10),
    e.PermissionDenied: Row(403, "permission_denied", 11),
    e.ModelNotFound: Row(404, "model_not_found", 12),
    e.ModelDisabled: Row(404, "model_disabled", 13),
    e.NotFound: Row(404, "not_found", 14),
    e.RequestTimedOut: Row(408, None, 15),
    e.PayloadTooLarge: Row(413, "payload_too_large", 16),
    # The same request can succeed at another time.
    e.TryLater: Row(503, "model_not_available", 20),
    e.ModelBusy: Row(429, "model_busy", 21),
    e.RateLimited: Row(429, "rate_limit_error", 22),
    e.ModelNotAvailable: Row(503, "model_not_available", 20),
    e.DeadlineUnmeetable: Row(503, "deadline_unmeetable", 23),
    e.InsufficientMemory: Row(507, "insufficient_vram_or_ram", 24),
    e.ProcessMemoryCap: Row(507, "process_memory_cap", 25),
    e.DeviceOutOfMemory: Row(507, "device_out_of_memory", 26),
    # Neither side's fault, or the engine's.
    e.Cancelled: Row(499, "cancelled", 30),
    e.EngineTimeout: Row(504, "timeout", 31),
    e.EngineFailed: Row(500, SERVER_ERROR, 32),
    e.LoadFailed: Row(500, SERVER_ERROR, 33),
    e.WorkerDied: Row(500, SERVER_ERROR, 34),
    # The program cannot start; these reach a person through the exit code only.
    e.StartRefused: Row(500, SERVER_ERROR, 40),
    e.ConfigurationInvalid: Row(500, SERVER_ERROR, 41),
    e.PortInUse: Row(500, SERVER_ERROR, 42),
    e.AlreadyRunning: Row(500, SERVER_ERROR, 43),
    e.BindRefused: Row(500, SERVER_ERROR, 44),
    e.FolderUnusable: Row(500, SERVER_ERROR, 45),
}


def row_of(error: e.HypnosError) -> Row:
    """The row of the error's class, or of its nearest ancestor that has one."""
    for ancestor in type(error).__mro__:
        if row := ERROR_TABLE.get(ancestor):
            return row
    raise AssertionError("HypnosError itself has a row")


# Classes that only group others, and those that never travel over HTTP, are not what an answer is turned back into.
_NEVER_ANSWERED = (e.StartRefused,)
_GROUPS = {e.HypnosError, e.RequestRefused, e.TryLater}
_BY_ANSWER: Final = {
    (row.status, row.wire_type): error
    for error, row in reversed(ERROR_TABLE.items())
    if error not in _GROUPS and not issubclass(error, _NEVER_ANSWERED)
}


def error_from_answer(status: int, wire_type: str | None, message: str, retry_after_s: float | None) -> e.HypnosError:
    """Rebuild the error that a server answered with; what no row names is told by its status class."""
    error = _BY_ANSWER.get((status, wire_type))
    if error is None:
        error = e.EngineFailed if status >= 500 else e.RequestRefused
    return error(message, retry_after_s=retry_after_s)
