"""The `[downloads]` table; declares, opens nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from hypnos_engine.config.kinds import Refused, Text, check_text, found, path_of
from hypnos_engine.config.setting import Table, setting, settings_of

_ADDRESS: Final = "an http:// or https:// address"


def _address(text: str) -> str:
    address = check_text(text.strip(), _ADDRESS)
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise Refused(f"expected {_ADDRESS}, found {found(text)}")
    return address.rstrip("/")


ADDRESS: Final = Text(_ADDRESS, _address)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSettings:
    """`[downloads]`."""

    hub: str | None = setting(
        ADDRESS,
        None,
        "Address of the hub that models come from, for a mirror of it.",
        unset="`HF_ENDPOINT`, else the public hub",
        effective=True,
    )
    proxy: str | None = setting(
        ADDRESS,
        None,
        "Proxy for downloads.",
        unset="the system's proxy, or that of `HTTPS_PROXY` and its kin",
        effective=True,
    )
    ca_file: Path | None = setting(
        path_of("the path of a PEM file"),
        None,
        "Certificates that downloads trust, PEM.",
        unset="`SSL_CERT_FILE`, else the system's store",
        effective=True,
    )


DOWNLOADS: Final = Table(
    path="downloads",
    help="How models are downloaded; nothing is downloaded unless you ask for it.",
    build=DownloadSettings,
    settings=settings_of(DownloadSettings),
)
