"""How a download child reaches the far side: proxy and certificates of system, environment or configuration.

Watches every answer: a range that was not kept, a file that has changed, a wish to be left alone. Runs in the child.
"""

import os
import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
from huggingface_hub import constants
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import set_client_factory  # type: ignore[attr-defined]

from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.domain.errors import InvalidRequest

CHUNK_BYTES: Final = 64 * 1024
"""What the library hands on at once. Its own 10 MB would be lost with every broken connection."""
_RANGE: Final = re.compile(r"bytes=(?P<start>\d+)-\d*")
_CONTENT_RANGE: Final = re.compile(r"bytes (?P<start>\d+)-\d+/(?P<total>\d+|\*)")


class AskedToWait(Exception):
    """The far side answered 429, or 503 with a time."""

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__("the far side asks to wait")
        self.retry_after_s = retry_after_s


class RangeIgnored(Exception):
    """The far side sends files from their beginning only."""


class SourceChanged(Exception):
    """What lies behind the address is not what it was."""


class Watch:
    """Looks at every answer of the client before its content is taken."""

    def __init__(self) -> None:
        self.size_bytes: int | None = None
        """Size of the whole file that is being fetched; None = anything."""
        self.etag: str | None = None

    def look(self, answer: httpx.Response) -> None:
        """Raises AskedToWait, RangeIgnored or SourceChanged."""
        if answer.is_redirect:
            return
        wait_s = _seconds(answer.headers.get("Retry-After"))
        if answer.status_code == 429 or (answer.status_code == 503 and wait_s is not None):
            raise AskedToWait(wait_s)
        asked = _RANGE.fullmatch(answer.request.headers.get("Range", ""))
        if asked is None or answer.is_error:
            return
        if answer.status_code != 206:
            if int(asked["start"]):
                raise RangeIgnored
            return
        self._look_at_part(answer, asked["start"])

    def _look_at_part(self, answer: httpx.Response, start: str) -> None:
        found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if found is None or found["start"] != start:
            raise RangeIgnored
        if self.size_bytes is not None and found["total"] not in ("*", str(self.size_bytes)):
            raise SourceChanged
        etag = answer.headers.get("ETag")
        if self.etag is not None and etag is not None and etag != self.etag:
            raise SourceChanged


def prepare(network: Network) -> Watch:
    """Make the library use our client from now on; returns what looks at its answers. Raises InvalidRequest."""
    watch = Watch()
    context, proxy = _certificates(network.ca_file), network.proxy
    if proxy is not None and urlsplit(proxy).scheme not in ("http", "https"):
        raise InvalidRequest("downloads.proxy: expected an http:// or https:// address.")

    def make() -> httpx.Client:
        return httpx.Client(
            event_hooks={"request": [_stay_offline], "response": [watch.look]},
            follow_redirects=True,
            timeout=None,  # noqa: S113 - the library says a timeout with every request
            verify=context,
            proxy=proxy,
            trust_env=proxy is None,
        )

    set_client_factory(make)
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    return watch


def _stay_offline(_: httpx.Request) -> None:
    if constants.is_offline_mode():
        raise OfflineModeIsEnabled


def _certificates(ca_file: str | None) -> ssl.SSLContext:
    """The system's own store, or what the configuration or the environment names in its place."""
    if ca_file is not None:
        try:
            return ssl.create_default_context(cafile=ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidRequest(
                f"downloads.ca_file: {Path(ca_file)} cannot be used ({error.strerror or 'no certificate in it'}). "
                "Name a PEM file with certificates."
            ) from error
    names = ssl.get_default_verify_paths()
    if os.environ.get(names.openssl_cafile_env) or os.environ.get(names.openssl_capath_env):
        return ssl.create_default_context()
    import truststore

    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _seconds(header: str | None) -> float | None:
    """A Retry-After in seconds; a date in it is left to our own patience."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 9 else None
