"""Headers and bodies of errors that depend on more than the table."""

import json

import pytest

from hypnos_engine.domain import errors as e
from hypnos_engine.server.answers import error_response


@pytest.mark.parametrize(
    ("error", "retry_after"),
    [
        (e.ModelBusy("full"), None),
        (e.ModelBusy("full", retry_after_s=3.0), None),
        (e.RateLimited("slow down"), "1"),
        (e.RateLimited("slow down", retry_after_s=0.01), "1"),
        (e.ModelNotAvailable("misconfigured"), None),
        (e.ModelNotAvailable("staging", retry_after_s=5.0), "5"),
        (e.DeadlineUnmeetable("late"), "1"),
        (e.DeadlineUnmeetable("late", retry_after_s=2.1), "3"),
        (e.InsufficientMemory("no room"), None),
    ],
)
def test_when_an_error_says_how_long_to_wait(error: e.HypnosError, retry_after: str | None) -> None:
    """§2-25, §4-22, §4-23, §4-28, A-14, A-15: whole seconds, at least one."""
    assert error_response(error).headers.get("Retry-After") == retry_after


@pytest.mark.parametrize(("multipart", "content_type"), [(False, "text/plain"), (True, "application/json")])
def test_a_413_is_plain_text_unless_the_body_was_multipart(multipart: bool, content_type: str) -> None:
    """§4-18..20."""
    response = error_response(e.PayloadTooLarge("larger than limits.max_body_bytes"), multipart=multipart)
    assert (response.status, response.content_type) == (413, content_type)
    assert response.text is not None
    assert "limits.max_body_bytes" in response.text
    if multipart:
        assert json.loads(response.text)["error"]["type"] == "payload_too_large"


@pytest.mark.parametrize("error", [e.InvalidApiKey("no key"), e.RateLimited("slow down", limit="tokens_per_day")])
def test_only_key_errors_have_param_and_code(error: e.HypnosError) -> None:
    """§4-04, §2-17, §2-27."""
    text = error_response(error).text
    assert text is not None
    body = json.loads(text)["error"]
    assert body["param"] is None
    assert body["code"] == {"invalid_api_key": "invalid_api_key", "rate_limited": "tokens_per_day"}[error.code]
    other = error_response(e.InvalidRequest("wrong")).text
    assert other == '{"error":{"message":"wrong","type":"invalid_request_error"}}'
