"""A hub on this machine that speaks enough of the real one's protocol for huggingface-hub, and fails as asked.

Serves repositories with commits, large files by a redirect to another host, small ones itself, plain files beside
them; records every request and every byte. Tests only. Never serves anything that was not put in.
"""

import hashlib
import json
import re
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

_RESOLVE: Final = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_API: Final = re.compile(
    r"/api/models/(?P<repo>[^/]+/[^/]+)(/(?P<what>revision|tree)/(?P<revision>[^/]+))?/?(?P<path>.*)"
)
_CDN: Final = re.compile(r"/cdn/(?P<sha256>[0-9a-f]{64})")
_PLAIN: Final = re.compile(r"/plain/(?P<path>.+)")
_RANGE: Final = re.compile(r"bytes=(?P<start>\d+)-(?P<end>\d*)")
_DRIP_S: Final = 0.05
_PIECE_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = 100_000
"""From so many bytes on a file is served by the other host and named by its SHA-256."""


@dataclass(frozen=True)
class Fault:
    """What happens to one answer with content."""

    cut_at: int | None = None
    """The connection is closed before this byte of the file."""
    hold_at: int | None = None
    """Nothing is sent from this byte of the file on, until the hub lets go."""
    drip_at: int | None = None
    """From this byte of the file on a byte comes now and then, until the hub lets go."""
    flip_at: int | None = None
    """This byte of the file is another."""
    status: int | None = None
    retry_after: str | None = None


@dataclass(frozen=True)
class Sent:
    """One answer with content, as far as it got."""

    path: str
    start: int
    count: int


@dataclass
class Repository:
    """Files by commit; the last commit is `main`."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False

    def commit(self, **files: bytes) -> str:
        """Add a commit with these files in place of all others, names with `__` for a slash; returns its id."""
        named = {name.replace("__", "/"): content for name, content in files.items()}
        return self.put(named)

    def put(self, files: dict[str, bytes]) -> str:
        """Add a commit with these files in place of all others; returns its id."""
        name = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode(), usedforsecurity=False).hexdigest()
        self.commits[name] = dict(files)
        return name

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit that a revision names, and its files."""
        name = list(self.commits)[-1] if revision == "main" and self.commits else revision
        return (name, self.commits[name]) if name in self.commits else None


class LocalHub:
    """The hub's state, shared by its two servers. Made by `local_hub`."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.plain: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        """Whose accounts have accepted every licence."""
        self.faults: deque[Fault] = deque()
        """For the next answers with content, one each."""
        self.refusals: deque[Fault] = deque()
        """For the next requests of any kind, one each."""
        self.ranges = True
        self.length = True
        self.etag_of_plain = True
        self.address = self.cdn_address = ""
        self.sent: list[Sent] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, address as it was asked for, headers by their lower-case names."""
        self.held = threading.Semaphore(0)
        """Released each time an answer reaches its hold."""
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._by_digest: dict[str, bytes] = {}

    def repository(self, name: str, **files: bytes) -> Repository:
        """Make a repository with one commit."""
        made = self.repositories[name] = Repository()
        if files:
            made.commit(**files)
        return made

    def release(self) -> None:
        """Let every answer that is held end: its connection is closed."""
        with self._lock:
            self._released.set()
            self._released = threading.Event()

    @property
    def sent_bytes(self) -> int:
        """Content of all answers together."""
        with self._lock:
            return sum(one.count for one in self.sent)

    def has_token(self, headers: dict[str, str]) -> bool:
        """Whether a request carries a token that may read everything."""
        return headers.get("authorization", "").removeprefix("Bearer ") in self.tokens

    def large(self, content: bytes) -> str:
        """The digest under which the other host serves a content."""
        digest = hashlib.sha256(content).hexdigest()
        self._by_digest[digest] = content
        return digest

    def content_of(self, digest: str) -> bytes | None:
        return self._by_digest.get(digest)

    def take(self, faults: deque[Fault]) -> Fault:
        """The next fault of a list."""
        with self._lock:
            return faults.popleft() if faults else Fault()

    def note_request(self, method: str, path: str, headers: dict[str, str]) -> None:
        with self._lock:
            self.requests.append((method, path, headers))

    def note_sent(self, sent: Sent) -> None:
        with self._lock:
            self.sent.append(sent)

    def released(self) -> threading.Event:
        """What is set once the answers that are at work now are to end."""
        with self._lock:
            return self._released

    def wait_released(self) -> None:
        """Block while an answer is held."""
        released = self.released()
        self.held.release()
        released.wait()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    hub: LocalHub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed on purpose: nothing to say about it."""


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server.hub
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.note_request(self.command, self.path, headers)
        refusal = hub.take(hub.refusals)
        if refusal.status is not None:
            self._refuse(refusal.status, retry_after=refusal.retry_after)
            return
        path = unquote(urlsplit(self.path).path)
        if found := _CDN.fullmatch(path):
            content = hub.content_of(found["sha256"])
            self._send(path, content, {"ETag": f'"{found["sha256"]}"'})
        elif found := _PLAIN.fullmatch(path):
            content = hub.plain.get(found["path"])
            etag = hashlib.md5(content or b"", usedforsecurity=False).hexdigest()
            self._send(path, content, {"ETag": f'"{etag}"'} if hub.etag_of_plain else {})
        elif found := _API.fullmatch(path):
            self._list(found, headers)
        elif found := _RESOLVE.fullmatch(path):
            self._resolve(found, headers)
        else:
            self._refuse(404)

    # --- the hub ----------------------------------------------------------------------------------------------------

    def _find(self, repo: str, revision: str, headers: dict[str, str]) -> tuple[str, dict[str, bytes]] | None:
        """A commit; None once the refusal is sent."""
        hub = self.server.hub
        repository = hub.repositories.get(repo)
        if repository is None:
            self._refuse(401, "RepoNotFound")
            return None
        if repository.gated and not hub.has_token(headers):
            self._refuse(403 if "authorization" in headers else 401, "GatedRepo")
            return None
        found = repository.at(revision)
        if found is None:
            self._refuse(404, "RevisionNotFound")
        return found

    def _resolve(self, asked: re.Match[str], headers: dict[str, str]) -> None:
        found = self._find(asked["repo"], asked["revision"], headers)
        if found is None:
            return
        commit, files = found
        content = files.get(asked["path"])
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        if len(content) < LARGE_BYTES:
            self._send(asked["path"], content, {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'})
            return
        digest = self.server.hub.large(content)
        self._end_head(
            HTTPStatus.FOUND,
            {
                "X-Repo-Commit": commit,
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{digest}"',
                "Location": f"{self.server.hub.cdn_address}/cdn/{digest}?signature=secret",
                "Content-Length": "0",
            },
        )

    def _list(self, asked: re.Match[str], headers: dict[str, str]) -> None:
        found = self._find(asked["repo"], asked["revision"] or "main", headers)
        if found is None:
            return
        commit, files = found
        if asked["what"] != "tree":
            siblings = [{"rfilename": name} for name in files]
            self._send_json({"id": asked["repo"], "sha": commit, "siblings": siblings})
            return
        inside = asked["path"].strip("/")
        self._send_json([_listed(path, files[path]) for path in files if not inside or path.startswith(f"{inside}/")])

    # --- sending ----------------------------------------------------------------------------------------------------

    def _send(self, path: str, content: bytes | None, headers: dict[str, str]) -> None:
        hub = self.server.hub
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        asked = _RANGE.fullmatch(self.headers.get("Range", "")) if hub.ranges else None
        start, end = (int(asked["start"]), int(asked["end"] or len(content) - 1) + 1) if asked else (0, len(content))
        if start >= max(1, len(content)):
            self._refuse(416)
            return
        fault = hub.take(hub.faults) if self.command == "GET" else Fault()
        if fault.status is not None:
            self._refuse(fault.status, retry_after=fault.retry_after)
            return
        end = min(end, len(content))
        if asked:
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        if hub.ranges:
            headers = {**headers, "Accept-Ranges": "bytes"}
        if hub.length:
            headers = {**headers, "Content-Length": str(end - start)}
        else:
            headers = {**headers, "Connection": "close"}
            self.close_connection = True
        self._end_head(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK, headers)
        if self.command == "GET":
            self._send_content(path, content, start, end, fault)

    def _send_content(self, path: str, content: bytes, start: int, end: int, fault: Fault) -> None:
        places = (fault.cut_at, fault.hold_at, fault.drip_at)
        stop = min(end, *(at for at in places if at is not None and at >= start), end)
        position = start
        try:
            while position < stop:
                piece = content[position : min(position + _PIECE_BYTES, stop)]
                if fault.flip_at is not None and position <= fault.flip_at < position + len(piece):
                    at = fault.flip_at - position
                    piece = piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :]
                self.wfile.write(piece)
                position += len(piece)
        finally:
            self.server.hub.note_sent(Sent(path, start, position - start))
        if stop < end:
            if fault.hold_at == stop:
                self.server.hub.wait_released()
            if fault.drip_at == stop:
                self._drip(content[stop:end])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _drip(self, content: bytes) -> None:
        released = self.server.hub.released()
        for number in range(len(content)):
            if released.wait(_DRIP_S):
                return
            self.wfile.write(content[number : number + 1])

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._end_head(HTTPStatus.OK, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _refuse(self, status: int, code: str = "", *, retry_after: str | None = None) -> None:
        headers = {"Content-Length": "0"}
        if code:
            headers["X-Error-Code"] = code
        if retry_after is not None:
            headers["Retry-After"] = retry_after
        self._end_head(HTTPStatus(status), headers)

    def _end_head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def git_sha1(content: bytes) -> str:
    """The name that git has for a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _listed(path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
    if len(content) >= LARGE_BYTES:
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return entry


@contextmanager
def local_hub(*, tls: ssl.SSLContext | None = None) -> Iterator[LocalHub]:
    """Serve a hub and its other host for the length of the block. With `tls` the hub itself speaks https."""
    hub = LocalHub()
    with _served(hub, tls) as port, _served(hub, None) as cdn_port:
        hub.address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        hub.cdn_address = f"http://localhost:{cdn_port}"  # another host by its name, and so to every client
        try:
            yield hub
        finally:
            hub.release()


@contextmanager
def _served(hub: LocalHub, tls: ssl.SSLContext | None) -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), _Answer)
    server.hub = hub
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="local hub")
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
