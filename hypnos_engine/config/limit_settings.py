"""The `[limits]` table (contract §1.4); declares, checks nothing across settings."""

from dataclasses import dataclass

from hypnos_engine.config.choices import Overload
from hypnos_engine.config.kinds import GIB, KIB, MIB, TIB, Choice, Number, Size, Switch, Whole
from hypnos_engine.config.setting import Table, setting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """`[limits]`."""

    max_body_bytes: int = setting(
        Size(KIB, TIB),
        256 * MIB,
        "Largest body of a request; a larger one is answered 413.",
        unit="bytes",
        effective=True,
    )
    max_audio_bytes: int = setting(
        Size(KIB, TIB), 64 * MIB, "Largest audio file, uploaded or decoded from base64.", unit="bytes"
    )
    max_image_bytes: int = setting(
        Size(KIB, TIB), 32 * MIB, "Largest picture, from a data URL or fetched.", unit="bytes"
    )
    max_document_bytes: int = setting(Size(KIB, TIB), 100 * MIB, "Largest document to convert.", unit="bytes")
    max_prompt_chars: int = setting(
        Whole(1, 10**9),
        1_000_000,
        "Longest text of a request: chat messages (each message and part counts one more), embedding inputs, speech.",
        unit="characters",
        effective=True,
    )
    max_tokens_cap: int = setting(
        Whole(1, 10**7), 8192, "A larger `max_tokens` is reduced to this.", unit="tokens", effective=True
    )
    max_images_per_request: int = setting(Whole(1, 1000), 4, "Largest `n` of an image request.")
    request_timeout_secs: float = setting(
        Number(1, 7 * 86400),
        900.0,
        "Time until the headers of an answer, model load included; after it 408.",
        unit="seconds",
        effective=True,
    )
    max_queue_per_model: int = setting(
        Whole(1, 100_000), 8, "Requests that may wait or run for one model; one more is answered 429.", effective=True
    )
    allow_remote_image_urls: bool = setting(
        Switch(), True, "Whether http(s) addresses of pictures and documents are fetched."
    )
    allow_private_urls: bool = setting(Switch(), False, "Whether such an address may lie in a private network.")
    overload: Overload = setting(
        Choice(Overload),
        Overload.QUEUE,
        "What happens to a request without a deadline that would miss the profile's objective: it waits, or 503.",
        effective=True,
    )
    max_overtakes: int = setting(
        Whole(0, 100_000), 32, "How many later requests may be served before a waiting one.", effective=True
    )
    max_overtaken_secs: float = setting(
        Number(0, 86400),
        60.0,
        "How long later requests may be served before a waiting one.",
        unit="seconds",
        effective=True,
    )
    max_connections: int = setting(Whole(1, 100_000), 512, "Connections that may be open at once.")
    max_body_bytes_in_flight: int = setting(
        Size(KIB),
        GIB,
        "Bytes of all bodies that are being received or read at once; a further one waits 5 s, then it is answered "
        "503.",
        unit="bytes",
        effective=True,
    )


LIMITS = Table(
    path="limits",
    help="What one request, and all of them together, may ask for.",
    build=LimitSettings,
    settings=settings_of(LimitSettings),
)
