"""Decides in which form a chat template gets a conversation, so that nothing of it is refused or silently left out.

Templates differ in what they know: some have no system turn, some read only lists of parts. What a template does is
found out by trying it, once. Must never change what a conversation says, only where it stands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Message = dict[str, object]
Try = Callable[[list[Message]], str | None]
"""Renders a conversation; None when the template refuses it or fails."""

_MARK = "d0e5f7a1c3"
"""A text that no template has of its own."""
_TRIMMING = "You have access to the following functions in JSONSchema format"
"""Marks a family (Step 3.5) that was trained on trimmed texts: stray blanks send it round in circles."""


@dataclass(frozen=True, slots=True)
class Forms:
    """What a template takes."""

    system: bool = True
    """A system turn is shown; else it is put before the turn that follows it."""
    parts: bool = False
    """Content is read only as a list of parts."""
    empty_answers_as_parts: bool = False
    """An answer without text is refused as a text but not as a part."""
    trimmed: bool = False

    def fitted(self, messages: Sequence[Mapping[str, object]]) -> list[Message]:
        """Return the conversation in the form that the template takes."""
        fitted = [dict(message) for message in messages]
        if not self.system and fitted and fitted[0].get("role") == "system":
            first, *fitted = fitted
            if fitted:
                fitted[0]["content"] = f"{first.get('content', '')}\n{fitted[0].get('content', '')}"
        for message in fitted:
            text = message.get("content")
            if not isinstance(text, str):
                continue
            if self.trimmed:
                text = message["content"] = text.strip()
            empty_answer = not text and message.get("role") == "assistant"
            if self.parts or (empty_answer and self.empty_answers_as_parts):
                message["content"] = [{"type": "text", "text": text}]
        return fitted


def learn(source: str, attempt: Try) -> Forms:
    """Find out what the template with this source takes."""
    parts = not _shown(attempt([_turn("user", _MARK)])) and _shown(attempt([_turn("user", _parts(_MARK))]))
    question = _turn("user", _parts("a") if parts else "a")
    system = _shown(attempt([_turn("system", _parts(_MARK) if parts else _MARK), question]))
    as_text, as_part = ([question, _turn("assistant", empty), question] for empty in ("", _parts("")))
    return Forms(
        system=system or attempt([question]) is None,
        parts=parts,
        empty_answers_as_parts=attempt(as_text) is None and attempt(as_part) is not None,
        trimmed=_TRIMMING in source,
    )


def _shown(text: str | None) -> bool:
    return text is not None and _MARK in text


def _turn(role: str, content: object) -> Message:
    return {"role": role, "content": content}


def _parts(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]
