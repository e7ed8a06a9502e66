"""The status page: self-contained, within its own policy, and dispensable (contract §1.1-08..10)."""

import base64
import hashlib
import re
from pathlib import Path

from hypnos_engine.server.app import make_app
from hypnos_engine.server.page import PAGE, load_page
from tests.server.fake_runtime import FakeRuntime
from tests.server.running import OPTIONS, running


async def test_the_page_loads_nothing_from_elsewhere() -> None:
    async with running() as server, server.http.get("/") as response:
        html = await response.text()
    assert response.status == 200
    assert response.content_type == "text/html"
    assert not re.findall(r"(?:src|href)=\"(?!data:,|/)", html)
    assert not re.findall(r"https?://", html)
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert "connect-src 'self'" in response.headers["Content-Security-Policy"]


def test_the_policy_allows_the_pages_own_style_and_script_only() -> None:
    page = load_page()
    assert page is not None
    for tag, directive in ((b"style", "style-src"), (b"script", "script-src")):
        contents = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page.html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(contents[0]).digest()).decode()
        assert len(contents) == 1
        assert f"{directive} 'sha256-{digest}'" in page.policy
    assert b"style=" not in page.html
    assert not re.findall(rb"\son[a-z]+=", page.html)


def test_the_page_can_be_read_without_a_mouse_or_a_screen() -> None:
    page = load_page()
    assert page is not None
    html = page.html.decode()
    assert '<html lang="en">' in html
    assert 'role="status"' in html
    assert html.count("<label") == html.count("<input")
    assert "prefers-color-scheme" in html or 'name="color-scheme" content="light dark"' in html


def test_an_installation_without_the_page_has_none(tmp_path: Path) -> None:
    assert load_page(tmp_path) is None


async def test_the_api_works_without_the_page() -> None:
    """§1.1-09."""
    app = make_app(FakeRuntime(), OPTIONS)
    del app[PAGE]
    async with running(app=app) as server:
        async with server.http.get("/") as response:
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "not_found"
        async with server.http.get("/v1/models") as response:
            assert response.status == 200
