"""Which refusal a request gets when several apply (wire.md, A-36).

Each case is wrong in its own way and, where that can be, in all later ones.
"""

from dataclasses import dataclass, field

import pytest
import yarl

from hypnos_engine.domain.errors import DeadlineUnmeetable, ModelBusy
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.server.app import ALL_ROUTES
from hypnos_engine.server.exchange import Route
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.running import ADMIN, KEYS, USER, running

VALID = b'{"model":"fake","messages":[{"role":"user","content":"Hi"}]}'
PICTURE = b'{"model":"fake","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}'
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
KEY = {"Authorization": f"Bearer {USER}"}


@dataclass(frozen=True)
class Case:
    name: str
    status: int
    wire_type: str | None
    body: bytes = b"{" + b" " * 5000
    headers: dict[str, str] = field(default_factory=dict)
    staging: bool = True
    method: str = "POST"
    script: Script = field(default_factory=lambda: Script(refuse=ModelBusy("full")))


CASES = [
    Case("host", 403, "permission_denied", headers={"Host": "evil.example"}),
    Case("preflight", 204, None, method="OPTIONS", headers={
        "Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
    }),
    Case("origin", 403, "permission_denied", headers={"Origin": "https://evil.example"}),
    Case("key", 401, "invalid_request_error"),
    Case("body size", 413, None, headers=KEY),
    Case("staging", 503, "model_not_available", body=b"{", headers=KEY),
    Case("content type", 400, "invalid_request_error", body=VALID, headers=KEY, staging=False),
    Case("body", 400, "invalid_request_error", body=b'{"model":"none"}', headers=KEY | JSON, staging=False),
    Case("model", 404, "model_not_found", PICTURE.replace(b'"fake"', b'"none"'), KEY | JSON, staging=False),
    Case("disabled model", 404, "model_disabled", PICTURE, KEY | JSON, staging=False, script=Script(enabled=False)),
    Case("modality", 400, "invalid_request_error", PICTURE, KEY | JSON, staging=False),
    Case("queue", 429, "model_busy", VALID, KEY | JSON, staging=False),
    Case("deadline", 503, "deadline_unmeetable", VALID, KEY | JSON, staging=False,
         script=Script(refuse=DeadlineUnmeetable("too late", retry_after_s=3.2))),
    Case("nothing", 200, None, VALID, KEY | JSON, staging=False, script=Script()),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_first_wrong_thing_is_what_is_told(loop_factory: LoopFactory, case: Case) -> None:
    runtime = FakeRuntime(fake=case.script)
    runtime.staging = case.staging
    async with (
        running(runtime, keys=KEYS, max_body_bytes=1000) as server,
        server.http.request(
            case.method,
            "/v1/chat/completions",
            data=case.body,
            headers=case.headers,
            skip_auto_headers=["Content-Type"],
        ) as response,
    ):
        text = await response.text()
    assert response.status == case.status, text
    if case.wire_type:
        assert f'"type":"{case.wire_type}"' in text
    assert response.headers["x-request-id"].startswith("req-")
    if case.status == 503:
        assert response.headers["Retry-After"] == {"staging": "5", "deadline": "4"}[case.name]
    if case.status == 429:
        assert "Retry-After" not in response.headers  # §4-22
    if case.status in {404, 429}:
        assert not runtime.said


async def test_an_admin_route_wants_an_admin_key_before_anything_else() -> None:
    """§2-11, §2-14: 403 stands between the key and the body's size."""
    chat = ALL_ROUTES[-1]
    guarded = Route("POST", "/v1/models", chat.handler, "guarded", {200: str}, admin=True, while_staging=False)
    runtime = FakeRuntime()
    runtime.staging = True
    statuses = []
    async with running(runtime, routes=(guarded,), keys=KEYS, max_body_bytes=1000) as server:
        for key in ("wrong", USER, ADMIN):
            headers = {"Authorization": f"bearer   {key} "}
            async with server.http.post("/v1/models", data=b" " * 2000, headers=headers) as response:
                statuses.append(response.status)
    assert statuses == [401, 403, 413]


@pytest.mark.parametrize("path", ["/health", "/ready", "/openapi.json", "/"])
async def test_what_is_open_needs_no_key(path: str) -> None:
    """§2-07."""
    async with running(keys=KEYS) as server, server.http.get(path) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/fake", "/v1/memory/status", "/v1/nothing", "/%76%31/models"]
)
async def test_everything_under_v1_needs_a_key(path: str) -> None:
    """§2-04, A-49: routes that do not exist included."""
    async with running(keys=KEYS) as server:
        url = yarl.URL(server.address + path, encoded=True)
        async with server.http.get(url) as response:
            body = await response.json()
    assert response.status == 401
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="hypnos"'
    assert body["error"] == {
        "message": "Missing API key. Send it as `Authorization: Bearer <key>` (server.api_keys).",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake", "/v1/memory/status", "/health"])
async def test_what_works_while_staging(path: str) -> None:
    """§3-09, §6.1-03, §14.1-01."""
    runtime = FakeRuntime()
    runtime.staging = True
    async with running(runtime) as server:
        async with server.http.get(path) as response:
            assert response.status == 200
        async with server.http.get("/ready") as response:
            assert response.status == 503
            assert await response.json() == {"ready": False, "reason": "startup tier initialization in progress"}
        runtime.staging = False
        async with server.http.get("/ready") as response:
            assert response.status == 200
            assert await response.json() == {"ready": True}


async def test_the_model_sees_whose_request_it_is() -> None:
    async with running(keys=KEYS) as server:
        headers = {
            "Authorization": f"Bearer {USER}",
            "x-hypnos-deadline-ms": "1500",
            "Content-Type": "application/json",
        }
        async with server.http.post("/v1/chat/completions", data=VALID, headers=headers) as response:
            assert response.status == 200
    ask = server.runtime.asks[0]
    assert (ask.model, ask.key_label, ask.deadline_s) == ("fake", "user", 1.5)


@pytest.mark.parametrize("deadline", ["", "soon", "-5", "nan", "inf", "1e999"])
async def test_a_malformed_deadline_is_none(deadline: str) -> None:
    """A-82."""
    async with running() as server:
        headers = {"x-hypnos-deadline-ms": deadline, "Content-Type": "application/json"}
        async with server.http.post("/v1/chat/completions", data=VALID, headers=headers) as response:
            assert response.status == 200
    assert server.runtime.asks[0].deadline_s is None


async def test_text_for_a_model_without_text() -> None:
    """§7.1-03."""
    spec = ModelSpec(ModelId("ear"), Modality.SPEECH_TO_TEXT, EngineKind.WHISPER, "w.bin")
    async with running(FakeRuntime(ear=Script(spec=spec))) as server:
        status, body = await server.chat(model="ear")
    assert status == 400
    assert "does not serve text_generation" in body["error"]["message"]
