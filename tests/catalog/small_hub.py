"""A hub of a few repositories on this machine: enough of its protocol for the client to ask what files there are."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    """One revision of a repository."""

    files: dict[str, tuple[int, str | None]]
    """Size and sha256 (None: not kept as a large file) by name."""
    gated: bool | str = False
    status: int = 200
    error_code: str = ""


@dataclass
class Hub:
    address: str
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    """By name and revision."""
    plain: dict[str, int] = field(default_factory=dict)
    """Sizes of what lies at plain addresses, by path."""
    asked: list[str] = field(default_factory=list)


@contextmanager
def small_hub() -> Iterator[Hub]:
    """Serve on a free port for the length of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(path)
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self.answer(hub.repos.get((name, revision or "main")), name, revision or "main")

        def do_HEAD(self) -> None:
            size = hub.plain.get(self.path)
            self.send_response(404 if size is None else 200)
            self.send_header("Content-Length", str(size or 0))
            self.end_headers()

        def answer(self, repo: Repo | None, name: str, revision: str) -> None:
            if repo is None:
                known = any(one == name for one, _ in hub.repos)
                repo = Repo({}, status=404, error_code="RevisionNotFound" if known else "RepoNotFound")
            body = json.dumps(_info(repo, name, revision) if repo.status == 200 else {"error": "no"}).encode()
            self.send_response(repo.status)
            if repo.error_code:
                self.send_header("X-Error-Code", repo.error_code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base names it
            """Nothing is written to the terminal of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _info(repo: Repo, name: str, revision: str) -> dict[str, Any]:
    siblings = [
        {"rfilename": file, "size": size, "blobId": "0" * 40}
        | ({"lfs": {"size": size, "sha256": sha256, "pointerSize": 130}} if sha256 else {})
        for file, (size, sha256) in repo.files.items()
    ]
    return {"id": name, "modelId": name, "sha": revision, "gated": repo.gated, "private": False, "siblings": siblings}
