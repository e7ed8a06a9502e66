"""`hypnos logs` against a real engine: what it shows, sets and empties; and the log's format as JSON."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from hypnos_engine.api.schemas.request_log import LogRecord
from hypnos_engine.cli import logs
from hypnos_engine.config.choices import LogLevel
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.server.request_log import STATUSES

if TYPE_CHECKING:
    from tests.cli.conftest import Hypnos

FreePort = Callable[[], int]


def asking(port: int, path: str, key: str, body: str | None = None) -> urllib.request.Request:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return urllib.request.Request(f"http://127.0.0.1:{port}{path}", None if body is None else body.encode(), headers)


def chat(port: int, key: str = "any") -> str:
    """Ask the demonstration model once; returns the answer's id."""
    body = json.dumps({"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi there"}]})
    with urllib.request.urlopen(asking(port, "/v1/chat/completions", key, body), timeout=60) as answer:
        answer.read()
        return str(answer.headers["x-request-id"])


def test_the_log_of_a_running_engine_is_shown_set_and_emptied(hypnos: "Hypnos", free_port: FreePort) -> None:
    port = free_port()
    process, _ = hypnos.start("--demo", "--port", str(port), "--log-format", "json", "-v")
    plain = chat(port)
    assert hypnos.run("logs", "--level", "debug").returncode == 0
    with_texts = chat(port)

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        metrics = answer.read().decode().splitlines()
    assert 'hypnos_model_loads_total{model="demo"} 1.0' in metrics
    assert "hypnos_scheduler_promotions_total 1.0" in metrics
    assert 'hypnos_model_tokens_total{kind="completion",model="demo"} 8.0' in metrics

    listed = hypnos.run("logs").stdout.splitlines()
    assert [line.split()[2] for line in listed] == [plain, with_texts]
    as_json = [json.loads(line) for line in hypnos.run("logs", "--json", "--limit", "1").stdout.splitlines()]
    assert [(one["id"], one["input"]) for one in as_json] == [(with_texts, "user: Hi there\n")]
    shown = hypnos.run("logs", with_texts).stdout
    assert "--- input\nuser: Hi there" in shown
    assert "--- output" in shown
    assert hypnos.run("logs", "--status", "error").stdout == ""
    assert hypnos.run("logs", "req-none").returncode == 14
    assert hypnos.run("logs", "--clear").returncode == 0
    assert hypnos.run("logs").stdout == ""

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.splitlines()]
    answered = [line for line in lines if "POST /v1/chat/completions 200" in line["message"]]
    assert [line["request_id"] for line in answered] == [plain, with_texts]
    loaded = [line["message"] for line in lines if line["logger"] == "hypnos.scheduler"]
    assert any("demo is ready" in message for message in loaded)


def test_the_configuration_says_what_is_kept_and_who_may_scrape(hypnos: "Hypnos", free_port: FreePort) -> None:
    """[§15-22] [§16-02] [§19-07] [§19-16]."""
    port, path = free_port(), hypnos.home / "own.toml"
    path.write_text(
        'config_version = 1\n[server]\napi_keys = ["one-key-of-mine"]\nmetrics_require_auth = true\n'
        'request_log_entries = 2\nrequest_log_level = "trace"\nrequest_log_redact = ["there|one-k"]\n',
        encoding="utf-8",
    )
    path.chmod(0o600)
    hypnos.start("--demo", "--port", str(port), "--config", str(path))
    ids = [chat(port, "one-key-of-mine") for _ in range(3)]
    shown = [json.loads(line) for line in hypnos.run("logs", "--json").stdout.splitlines()]
    assert [one["id"] for one in shown] == ids[1:]
    assert {one["input"] for one in shown} == {"user: Hi [redacted]\n"}
    assert all("there" not in one["request_payload"] for one in shown)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
    with urllib.request.urlopen(asking(port, "/metrics", "one-key-of-mine"), timeout=60) as answer:
        assert b"hypnos_api_key_requests_total" in answer.read()


def test_without_an_engine_it_says_so(hypnos: "Hypnos") -> None:
    answer = hypnos.run("logs")
    assert answer.returncode == 20
    assert "running" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_limit_has_to_be_a_number(hypnos: "Hypnos") -> None:
    for wrong in ("0", "x", "-1"):
        assert hypnos.run("logs", f"--limit={wrong}").returncode == 2


def test_the_words_are_those_of_the_server() -> None:
    assert tuple(LogLevel) == logs._LEVELS
    assert logs._STATUSES == STATUSES


def test_what_a_model_wrote_does_not_reach_the_terminal_as_commands() -> None:
    record = LogRecord(
        id="req-1", route="/v1/chat/completions", method="POST", status=200, key="local",
        started_at=datetime(2026, 1, 1, tzinfo=UTC), duration_ms=1500.4, model="m\x1b[2J", stream=False, tokens_in=5,
        tokens_out=2, cached_tokens=0, tokens_per_s=12.34, waited_ms=900.0, inference_ms=600.0, tier_switch_ms=800.0,
        previous_tier=Tier.DISK, error=None, error_type=None, level=LogLevel.DEBUG, truncated=True,
        input="user: Hi\n", output="\x1b]0;owned\x07ok é",
    )  # fmt: skip
    line = logs.record_text(record, whole=False)
    assert "1500 ms  m\\x1b[2J  key local  5 + 2 tokens  12.3 tokens/s" in line
    assert "loaded in 800 ms from tier3_nvme_ssd" in line
    whole = logs.record_text(record, whole=True)
    assert "\\x1b]0;owned\\x07ok é" in whole
    assert "not whole" in whole
    assert not any(ord(one) < 32 and one != "\n" for one in whole)
