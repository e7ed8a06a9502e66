"""Blanks what the operator's patterns find in captured text; in a process of its own, for a pattern can take for ever.

Pure, like all readings. Never lets text through that a pattern could not be tried on.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from hypnos_engine.api.schemas.request_log import LogLevelRequest
from hypnos_engine.config.choices import LogLevel
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.server.options import ServerOptions

BLANK: Final = "[redacted]"


class RedactionRequest(msgspec.Struct, frozen=True):
    """Texts, and the expressions of what is to be blanked in them; never comes from a client."""

    texts: tuple[str, ...]
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Redacted:
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewLevel:
    level: LogLevel


def redact(job: RedactionRequest, _: ServerOptions) -> Redacted:
    """Replace what any of the patterns matches, in their order."""
    patterns = [re.compile(pattern) for pattern in job.patterns]
    return Redacted(tuple(_blank(text, patterns) for text in job.texts))


def _blank(text: str, patterns: list[re.Pattern[str]]) -> str:
    for pattern in patterns:
        text = pattern.sub(lambda found: BLANK if found[0] else "", text)
    return text


def read_level(body: LogLevelRequest, _: ServerOptions) -> NewLevel:
    """Raises InvalidRequest."""
    try:
        return NewLevel(LogLevel(body.level))
    except ValueError:
        raise InvalidRequest(f"level: expected one of {', '.join(LogLevel)}.") from None
