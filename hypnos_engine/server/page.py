"""The page at `/`: one self-contained file from `resources/`; without it the API works all the same (contract §1.1).

Never serves anything but that one file, and lets it load nothing from elsewhere.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from aiohttp import web

import hypnos_engine
from hypnos_engine.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class Page:
    """A page and the policy that allows its own style and script, by their digests, and no others."""

    html: bytes
    policy: str


PAGE: Final = web.AppKey("page", Page)


async def show_page(request: web.Request) -> web.Response:
    """The status page. Raises NotFound where the installation has none."""
    page = request.app.get(PAGE)
    if page is None:
        raise NotFound("This installation has no status page. The API is under /v1; GET /openapi.json describes it.")
    headers = {"Content-Security-Policy": page.policy, "Referrer-Policy": "no-referrer"}
    return web.Response(body=page.html, content_type="text/html", charset="utf-8", headers=headers)


def load_page(folder: Traversable | None = None) -> Page | None:
    """Read `index.html` from the installation's resources (or from `folder`); None when there is none."""
    folder = folder or _resources()
    file = folder / "index.html"
    if not file.is_file():
        return None
    html = file.read_bytes()
    return Page(html, _policy(html))


def _resources() -> Traversable:
    """Inside the package in a wheel, beside it in a checkout."""
    inside = resources.files(hypnos_engine) / "resources"
    return inside if inside.is_dir() else Path(hypnos_engine.__file__).parent.parent / "resources"


def _policy(html: bytes) -> str:
    styles, scripts = _digests(html, b"style"), _digests(html, b"script")
    return (
        f"default-src 'none'; style-src {styles}; script-src {scripts}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digests(html: bytes, tag: bytes) -> str:
    contents = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
