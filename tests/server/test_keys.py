"""Keys, hosts and origins as questions about header values, and what a browser gets to see of them."""

import hashlib

import pytest

from hypnos_engine.domain.errors import InvalidApiKey
from hypnos_engine.server.keys import find_key, host_is_allowed, origin_is_allowed
from hypnos_engine.server.options import AccessKey
from tests.server.running import running

KEYS = tuple(
    AccessKey(name, hashlib.sha256(key.encode()).hexdigest().upper()) for name, key in (("a", "k1"), ("b", "k2"))
)


@pytest.mark.parametrize(
    "header", ["Bearer k2", "bearer k2", "BEARER   k2  ", "  Bearer k2", "Bearer\tk2", "Bearer \t k2\t"]
)
def test_a_key_is_found_whatever_the_case_of_the_scheme_and_the_blanks(header: str) -> None:
    """§2-05, §2-06."""
    assert find_key(header, KEYS).label == "b"


@pytest.mark.parametrize(
    ("header", "word"),
    [(None, "Missing"), ("  ", "Missing"), ("Basic k1", "Malformed"), ("Bearer", "Malformed"), ("k1", "Malformed"),
     ("Bearer k3", "Unknown"), ("Bearer k1 k2", "Unknown"), ("Bearer \udcff", "Unknown")],
)  # fmt: skip
def test_what_is_no_key_is_refused_without_repeating_it(header: str | None, word: str) -> None:
    """§2-15, §2-33."""
    with pytest.raises(InvalidApiKey, match=word) as refusal:
        find_key(header, KEYS)
    assert "k3" not in refusal.value.message


@pytest.mark.parametrize("header", [None, "Bearer anything", "nonsense"])
def test_without_keys_any_header_passes(header: str | None) -> None:
    """§2-09, §2-10, §1.1-18."""
    assert find_key(header, ()).admin


@pytest.mark.parametrize(
    ("host", "allowed"),
    [(None, True), ("localhost", True), ("localhost:9999", True), ("LOCALHOST.", True), ("127.0.0.1:1", True),
     ("127.0.0.2", True), ("192.168.0.7", False), ("0.0.0.0", False),
     ("[::1]:9999", True), ("[::1]", True), ("app.localhost:80", True), ("mybox:9999", True), ("MYBOX", True),
     ("evil.example", False), ("localhost.evil.example", False), ("evillocalhost", False), ("127.0.0.1.evil", False),
     ("[::1", False), ("@localhost@evil", False), ("[::2]:9999", False), (":9999", False), ("evil@localhost", False),
     ("localhost/evil", False), ("localhost:99999", False), ("localhost:9x", False)],
)  # fmt: skip
def test_only_names_of_this_computer_are_hosts(host: str | None, allowed: bool) -> None:
    assert host_is_allowed(host, ("mybox",)) is allowed


@pytest.mark.parametrize(
    ("host", "entry", "allowed"),
    [("hypnos.local:9999", "hypnos.local:9999", True), ("HYPNOS.local.:9999", "hypnos.local:9999", True),
     ("hypnos.local:9999", "Hypnos.Local.:9999", True), ("hypnos.local:9998", "hypnos.local:9999", False),
     ("hypnos.local", "hypnos.local:9999", False), ("hypnos.local", "hypnos.local:80", True),
     ("hypnos.local:1", "hypnos.local.", True), ("hypnos.local", "hypnos.local", True),
     ("other.local:9999", "hypnos.local:9999", False),
     ("[fd00::7]:9999", "[fd00::7]", True), ("[FD00:0::7]", "[fd00::7]", True), ("[fd00::7]", "[FD00:0:0::7]", True),
     ("[fd00::7]:9999", "[fd00::7]:9999", True), ("[fd00::7]:9998", "[fd00::7]:9999", False),
     ("[fd00::8]", "[fd00::7]", False), ("192.168.0.7:9999", "192.168.0.7:9999", True),
     ("192.168.0.7:1", "192.168.0.7:9999", False), ("nas", "", False), ("nas", "nas:x", False)],
)  # fmt: skip
def test_an_entry_with_a_port_allows_that_port_only(host: str, entry: str, allowed: bool) -> None:
    assert host_is_allowed(host, ("unrelated", entry)) is allowed


@pytest.mark.parametrize(("host", "status"), [("hypnos.local:9999", 200), ("hypnos.local:9998", 403)])
async def test_a_listed_name_and_port_is_served(host: str, status: int) -> None:
    async with (
        running(allowed_hosts=("hypnos.local:9999",)) as server,
        server.http.get("/health", headers={"Host": host}) as response,
    ):
        assert response.status == status


async def test_a_tab_may_stand_before_the_key() -> None:
    headers = {"Authorization": "Bearer\tk1"}
    async with running(keys=KEYS) as server, server.http.get("/v1/models", headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("http://localhost", True), ("http://localhost:3000", True), ("https://127.0.0.1:8443", True),
     ("http://[::1]:5173", True), ("http://app.localhost", True),
     ("http://lan:1", True), ("http://lan:65535", True), ("https://lan:1", False), ("http://lan", True),
     ("https://chat.example", True), ("https://chat.example:444", False), ("http://chat.example", False),
     ("https://chat.example.evil", False), ("http://lan.evil:1", False),
     ("null", False), ("", False), ("http://evil.example", False), ("http://localhost.evil.example", False),
     ("file://", False), ("http://localhost@evil.example", False), ("http://localhost:99999", False),
     ("http://localhost/path", False), ("javascript://localhost", False),
     ("http://box:9999", True), ("http://box:9998", False)],
)  # fmt: skip
def test_which_pages_may_call(origin: str, allowed: bool) -> None:
    """§1.3-01..04: loopback, the server's own page, and the operator's list with `*` ports."""
    assert origin_is_allowed(origin, "box:9999", ("http://lan:*", "https://chat.example/")) is allowed


def test_a_star_allows_every_origin() -> None:
    assert origin_is_allowed("https://anything.example", None, ("*",))


@pytest.mark.parametrize("path", ["/v1/models", "/v1/nothing", "/health"])
async def test_a_page_on_loopback_may_read_answers_and_errors(path: str) -> None:
    """§1.3-07, A-18, A-19."""
    origin = "http://localhost:3000"
    async with running() as server, server.http.get(path, headers={"Origin": origin}) as response:
        assert response.headers["Access-Control-Allow-Origin"] == origin
        exposed = {name.strip().lower() for name in response.headers["Access-Control-Expose-Headers"].split(",")}
    assert exposed >= {"x-request-id", "retry-after", "x-hypnos-estimated-wait-ms", "x-hypnos-rtf"}
    assert response.headers["Vary"] == "Origin"


async def test_a_foreign_page_gets_no_cors_headers_and_may_not_post() -> None:
    """§1.3-02."""
    headers = {"Origin": "https://evil.example"}
    async with running() as server:
        async with server.http.get("/v1/models", headers=headers) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
        async with server.http.post("/v1/chat/completions", data="{}", headers=headers) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers


async def test_a_preflight_offers_get_post_and_options_and_every_header() -> None:
    """§1.3-05, §1.3-06, A-17, A-20."""
    headers = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        "Access-Control-Request-Private-Network": "true",
    }
    async with running(keys=KEYS) as server, server.http.options("/v1/chat/completions", headers=headers) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Methods"] == "GET, POST, OPTIONS"
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-stainless-os"
        assert response.headers["Access-Control-Allow-Private-Network"] == "true"


async def test_beyond_loopback_any_host_name_is_served() -> None:
    async with running(loopback=False) as server, server.http.get("/health", headers={"Host": "nas.home"}) as response:
        assert response.status == 200
