"""The `[server]` table and the API keys; declares, checks nothing across settings."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hypnos_engine.config.addresses import ALLOWED_HOST, BIND_HOST, DIGEST, LABEL, SECRET, WEB_ORIGIN
from hypnos_engine.config.choices import LogLevel, Profile
from hypnos_engine.config.kinds import GIB, MIB, Choice, Many, Moment, Number, Size, Switch, Whole, path_of
from hypnos_engine.config.names import MODEL_ID
from hypnos_engine.config.redaction import REDACTION, Redaction
from hypnos_engine.config.setting import Setting, Table, required, setting, settings_of
from hypnos_engine.domain.model import ModelId

DAY_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """Who may call. The key itself is nowhere kept."""

    sha256: str = field(repr=False)
    """Of the key without blanks around it, 64 lower-case hexadecimal digits."""
    label: str = setting(
        LABEL,
        "",
        "Name of the key in the request log and the metrics; two keys never share one.",
        unset="`key-` and the first 8 digits of the key's SHA-256",
        effective=True,
    )
    admin: bool = setting(Switch(), False, "Whether the key may change the model pool.", effective=True)
    requests_per_minute: int | None = setting(
        Whole(1, 1_000_000), None, "Requests that the key may start in a minute.", unset="no limit"
    )
    max_concurrent: int | None = setting(
        Whole(1, 100_000),
        None,
        "Requests of the key that may run at once, answers being read included.",
        unset="no limit",
    )
    tokens_per_day: int | None = setting(
        Whole(1, 10**15), None, "Prompt and completion tokens of the key in a UTC day.", unit="tokens", unset="no limit"
    )
    weight: float = setting(
        Number(0.01, 100), 1.0, "The key's share of a busy model beside the other keys.", effective=True
    )
    models: tuple[ModelId, ...] = setting(
        Many(MODEL_ID), (), "Ids of the models that the key may use.", unset="all models"
    )
    expires: datetime | None = setting(
        Moment(), None, "From this moment on the key is refused; UTC when no offset is written.", unset="never"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """`[server.tls]`: with it the server speaks https."""

    cert: Path = required(path_of("the path of a PEM file"), "Certificate chain, PEM.")
    key: Path = required(path_of("the path of a PEM file"), "Private key of the certificate, PEM.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[server]`."""

    host: str = setting(
        BIND_HOST,
        "127.0.0.1",
        "Address to listen on; 127.0.0.1 stands for both loopback addresses, 127.0.0.1 and ::1.",
        effective=True,
        environment="HYPNOS_HOST",
        flag="--host",
    )
    port: int = setting(
        Whole(1, 65535),
        9999,
        "TCP port to listen on.",
        effective=True,
        environment="HYPNOS_PORT",
        flag="--port",
    )
    allowed_origins: tuple[str, ...] = setting(
        Many(WEB_ORIGIN),
        (),
        "Web pages, beside those on this machine, that may call the API; the port may be a star.",
        effective=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        Many(ALLOWED_HOST),
        (),
        "Host names, beside the loopback ones, under which the server may be called.",
        effective=True,
    )
    metrics_require_auth: bool = setting(Switch(), False, "Whether `/metrics` needs a key.", effective=True)
    profile: Profile | None = setting(
        Choice(Profile),
        None,
        "What the machine is mostly used for; sets the objective that `limits.overload` sheds by.",
        unset="none",
        effective=True,
    )
    objective_ms: float | None = setting(
        Number(1, 3_600_000),
        None,
        "Time to the first token or first sound that the profile aims at.",
        unit="milliseconds",
        unset="the profile's own",
        effective=True,
    )
    kv_idle_timeout_secs: float | None = setting(
        Number(1, 30 * DAY_S),
        None,
        "Idle conversations give their cache cells back after this time.",
        unit="seconds",
        unset="never",
        effective=True,
    )
    document_pictures_ttl_secs: float = setting(
        Number(1, 30 * DAY_S), 3600.0, "How long the pictures of a converted document can be fetched.", unit="seconds"
    )
    document_pictures_max_bytes: int = setting(
        Size(MIB), GIB, "Room for the pictures of converted documents; the oldest go first.", unit="bytes"
    )
    request_log_entries: int = setting(
        Whole(0, 100_000), 200, "Calls that the request log keeps, within 16 MiB.", effective=True
    )
    request_log_level: LogLevel = setting(
        Choice(LogLevel),
        LogLevel.INFO,
        "How much of each call the request log keeps; text only from `debug` on.",
        effective=True,
    )
    request_log_redact: Redaction = setting(
        REDACTION,
        Redaction(),
        "Blanks captured text: true for all of it, or a list of regular expressions.",
        effective=True,
    )
    stream_hold_secs: float = setting(
        Number(0, 3600),
        10.0,
        "How long a stream that waits for its model may hold its status back.",
        unit="seconds",
        effective=True,
    )
    drain_secs: float = setting(
        Number(0, 3600),
        30.0,
        "How long running requests may go on when the server is told to stop.",
        unit="seconds",
        effective=True,
    )
    tls: TlsSettings | None = None
    keys: tuple[ApiKey, ...] = ()
    """Every key: those of `server.api_keys`, of HYPNOS_API_KEYS and of `[[server.keys]]`, in this order."""

    @property
    def target_ms(self) -> float | None:
        """What the profile aims at, as it says or as it is set; None without one, or where only throughput counts."""
        if self.profile is None or self.objective_ms is not None:
            return self.objective_ms
        return self.profile.objective_ms


def make_key(*, key: str | None, key_sha256: str | None, **values: Any) -> ApiKey:
    """Make an ApiKey of a `[[server.keys]]` table; one of the two digests is given."""
    digest = key or key_sha256 or ""
    return ApiKey(sha256=digest, label=values.pop("label") or default_label(digest), **values)


def default_label(sha256: str) -> str:
    """Return what stands for a key without a label in logs and metrics (contract §2-30)."""
    return f"key-{sha256[:8]}"


KEYS = Table(
    path="server.keys",
    help="One API key with its own limits. A plain key in `server.api_keys` is an admin key without limits.",
    repeated=True,
    build=make_key,
    settings=(
        Setting(name="key", kind=SECRET, help="The key. Only its SHA-256 is kept in memory.", effective=True),
        Setting(
            name="key_sha256",
            kind=DIGEST,
            help="The SHA-256 of the key, in place of `key`, so that the file does not hold it.",
            effective=True,
        ),
        *settings_of(ApiKey),
    ),
)

TLS = Table(
    path="server.tls",
    help="With this table the server speaks https.",
    build=TlsSettings,
    settings=settings_of(TlsSettings),
)


def make_server(*, api_keys: tuple[str, ...], keys: tuple[ApiKey, ...], **values: Any) -> ServerSettings:
    """Make the section; plain keys become admin keys and stand first."""
    plain = tuple(ApiKey(sha256=digest, label=default_label(digest), admin=True) for digest in api_keys)
    return ServerSettings(keys=plain + keys, **values)


SERVER = Table(
    path="server",
    help="How clients reach Hypnos and who may.",
    build=make_server,
    settings=(
        *settings_of(ServerSettings)[:2],
        Setting(
            name="api_keys",
            kind=Many(SECRET),
            default=(),
            help="Admin keys; with any key set, every call under `/v1` needs one.",
            unset="no key is needed",
            effective=True,
            environment="HYPNOS_API_KEYS",
        ),
        *settings_of(ServerSettings)[2:],
    ),
    tables=(TLS, KEYS),
)
