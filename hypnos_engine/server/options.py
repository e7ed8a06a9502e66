"""Everything the HTTP server may be told, as plain values; decides no default that the configuration also decides."""

from dataclasses import dataclass
from typing import Literal

from hypnos_engine.config.choices import LogLevel


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One API key. The key itself is never kept."""

    label: str
    sha256: str
    """SHA-256 of the key, 64 hexadecimal digits."""
    admin: bool = False
    weight: float = 1.0
    """Share of the models' time beside other keys; above 0."""


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """What the server is to be good at (`server.profile`)."""

    name: str
    metric: Literal["first_token", "first_audio", "throughput"]
    target_ms: float | None
    """None where only throughput counts."""


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """When a stream says something although the model does not. Seconds."""

    hold_s: float = 10.0
    """A stream that waited this long for its lease sends its status without it."""
    waiting_comment_s: float = 5.0
    """Longest silence before the lease, once the status is out."""
    silent_comment_s: float = 15.0
    """Longest silence after it."""


@dataclass(frozen=True, slots=True)
class LogTerms:
    """What the request log keeps."""

    entries: int = 200
    max_bytes: int = 16 * 1024 * 1024
    """Of all records together; the texts of calls under way may take as much again."""
    level: LogLevel = LogLevel.INFO
    """At the start."""
    blank: bool = False
    """Keep no text, whatever the level."""
    patterns: tuple[str, ...] = ()
    """Regular expressions of what is blanked in captured text."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits, keys and origins of one server. Sizes in bytes, times in seconds."""

    version: str
    keys: tuple[AccessKey, ...] = ()
    """Empty = no key is asked for."""
    loopback: bool = True
    """True while the server is bound to loopback only: then the Host header has to name it."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names or addresses; one with a port counts on that port only."""
    allowed_origins: tuple[str, ...] = ()
    """Further browser origins, each exact or with a port of `*`."""
    max_body_bytes: int = 256 * 1024 * 1024
    max_body_bytes_in_flight: int = 1024 * 1024 * 1024
    """Most bytes of all bodies that are being received or read at once."""
    body_wait_s: float = 5.0
    """How long a body waits for its place among those bytes before it is refused."""
    body_grace_s: float = 20.0
    """How long a body may take, whatever its size; beyond it a client has to keep to `body_bytes_per_s`."""
    body_bytes_per_s: int = 1024
    """Slowest pace, on average, at which a body may come."""
    spool_dir: str | None = None
    """Folder for the nameless files that hold large bodies; None = the system's for temporary files."""
    max_prompt_chars: int = 1_000_000
    max_tokens_cap: int = 8192
    request_timeout_s: float = 900.0
    drain_s: float = 30.0
    stall_s: float = 120.0
    """A client that takes no byte of what waits for it for this long is dropped."""
    idle_connection_s: float = 75.0
    """A connection without a request is closed after this long."""
    stream: StreamTimes = StreamTimes()
    profile: WorkloadProfile | None = None
    metrics_need_key: bool = False
    request_log: LogTerms = LogTerms()
