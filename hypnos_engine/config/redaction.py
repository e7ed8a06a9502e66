"""What the request log must not show of captured text; redacts nothing itself."""

import re
import warnings
from dataclasses import dataclass

from hypnos_engine.config.kinds import Refused, found, mistaken

_MOST_PATTERNS = 100
_LONGEST_PATTERN = 1000


@dataclass(frozen=True, slots=True)
class Redaction:
    """`server.request_log_redact`; nothing is redacted by default."""

    everything: bool = False
    patterns: tuple[str, ...] = ()
    """Valid regular expressions of Python's `re`."""


class _RedactionKind:
    expected = "true, false or a list of regular expressions"

    def read(self, value: object) -> Redaction:
        if isinstance(value, Redaction):
            return value
        if isinstance(value, bool):
            return Redaction(everything=value)
        if not isinstance(value, list | tuple) or len(value) > _MOST_PATTERNS:
            raise mistaken(self, value)
        return Redaction(patterns=tuple(self._pattern(pattern) for pattern in value))

    def read_text(self, text: str) -> Redaction:
        return self.read({"true": True, "false": False}.get(text.strip().lower(), [text]))

    def _pattern(self, pattern: object) -> str:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _LONGEST_PATTERN:
            raise mistaken(self, pattern)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about sets whose meaning may change in another Python
                re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            raise Refused(f"expected a regular expression, found {found(pattern)}") from None
        return pattern


REDACTION = _RedactionKind()
