"""Every error that leaves a room, as one tree; `code` is stable and travels between processes.

HypnosError
├─ RequestRefused                the client has to change something
│  ├─ InvalidRequest             a field, a value, a limit, a modality
│  │  └─ UnknownOffloadMode
│  ├─ InvalidApiKey
│  ├─ PermissionDenied
│  ├─ ModelNotFound
│  ├─ ModelDisabled
│  ├─ NotFound
│  ├─ RequestTimedOut            no response headers within limits.request_timeout_secs
│  └─ PayloadTooLarge
├─ TryLater                      the same request can succeed at another time
│  ├─ ModelBusy
│  ├─ RateLimited
│  ├─ ModelNotAvailable
│  ├─ DeadlineUnmeetable
│  ├─ InsufficientMemory
│  ├─ ProcessMemoryCap
│  └─ DeviceOutOfMemory
├─ Cancelled                     the client left or the server is shutting down
├─ EngineTimeout                 an engine did not answer in its time
├─ EngineFailed                  an engine could not do what it was asked
│  ├─ LoadFailed                 weights refused, file damaged, library missing
│  └─ WorkerDied                 the process that held the model is gone
└─ StartRefused                  the program cannot start or go on as asked
   ├─ ConfigurationInvalid
   ├─ PortInUse
   ├─ AlreadyRunning
   ├─ BindRefused                a public address without a key
   └─ FolderUnusable

Statuses, wire types and exit codes are not decided here: see `hypnos_engine.api.error_table`.
"""

from collections.abc import Iterator
from typing import ClassVar


class HypnosError(Exception):
    """An error that a person may read. `message` says what is wrong and what to do about it."""

    code: ClassVar[str] = "hypnos_error"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        """Seconds after which another try makes sense; None when nothing is known or nothing is to be said."""


class RequestRefused(HypnosError):
    code = "request_refused"


class InvalidRequest(RequestRefused):
    code = "invalid_request"


class UnknownOffloadMode(InvalidRequest):
    code = "unknown_offload_mode"


class InvalidApiKey(RequestRefused):
    code = "invalid_api_key"


class PermissionDenied(RequestRefused):
    code = "permission_denied"


class ModelNotFound(RequestRefused):
    code = "model_not_found"


class ModelDisabled(RequestRefused):
    code = "model_disabled"


class NotFound(RequestRefused):
    code = "not_found"


class RequestTimedOut(RequestRefused):
    code = "request_timed_out"


class PayloadTooLarge(RequestRefused):
    code = "payload_too_large"


class TryLater(HypnosError):
    code = "try_later"


class ModelBusy(TryLater):
    code = "model_busy"


class RateLimited(TryLater):
    """A per-key limit was hit; `limit` is its name in the configuration (contract §2)."""

    code = "rate_limited"

    def __init__(self, message: str, *, limit: str = "requests_per_minute", retry_after_s: float | None = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class ModelNotAvailable(TryLater):
    code = "model_not_available"


class DeadlineUnmeetable(TryLater):
    code = "deadline_unmeetable"


class InsufficientMemory(TryLater):
    code = "insufficient_memory"


class ProcessMemoryCap(TryLater):
    code = "process_memory_cap"


class DeviceOutOfMemory(TryLater):
    code = "device_out_of_memory"


class Cancelled(HypnosError):
    code = "cancelled"


class EngineTimeout(HypnosError):
    code = "engine_timeout"


class EngineFailed(HypnosError):
    code = "engine_failed"


class LoadFailed(EngineFailed):
    code = "load_failed"


class WorkerDied(EngineFailed):
    code = "worker_died"


class StartRefused(HypnosError):
    code = "start_refused"


class ConfigurationInvalid(StartRefused):
    code = "configuration_invalid"


class PortInUse(StartRefused):
    code = "port_in_use"


class AlreadyRunning(StartRefused):
    code = "already_running"


class BindRefused(StartRefused):
    code = "bind_refused"


class FolderUnusable(StartRefused):
    code = "folder_unusable"


def every_error() -> Iterator[type[HypnosError]]:
    """Yield each class of the tree once, parents before children."""
    pending: list[type[HypnosError]] = [HypnosError]
    while pending:
        error = pending.pop(0)
        yield error
        pending.extend(error.__subclasses__())


def error_from_code(code: str, message: str) -> HypnosError:
    """Rebuild an error that crossed a process boundary; an unknown `code` becomes EngineFailed."""
    for error in every_error():
        if error.code == code:
            return error(message)
    return EngineFailed(message)
