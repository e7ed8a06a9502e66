"""Turns a conversation into tokens; what a client wrote can never become a control token.

Every control token's text inside a client's strings is broken by a character that occurs nowhere else. After rendering,
the text is cut at these marks: the broken pieces are spelled out letter by letter, all the rest is read as a whole. So
an ordinary conversation gets exactly the tokens that its rendered text has.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama.template_process import Renderer, TemplateProcess
from hypnos_engine.workers.llama.vocabulary import Vocabulary

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt must fit."""

    model: str
    context_train: int
    """Tokens that the model can attend to; 0 = the file does not say."""


class PromptWriter:
    """Makes prompts for one model; used by one thread at a time."""

    def __init__(
        self, vocabulary: Vocabulary, template: str | None, limits: Limits, renderer: Renderer | None = None
    ) -> None:
        """`renderer` was started ahead, if any; it is ended when there is nothing to render."""
        self._vocabulary = vocabulary
        self._limits = limits
        self._source = template or ""
        self._template: TemplateProcess | None = None
        if template is not None:
            bos, eos = vocabulary.text_of(vocabulary.bos), vocabulary.text_of(vocabulary.eos)
            self._template = TemplateProcess(template, bos=bos, eos=eos, renderer=renderer)
        elif renderer is not None:
            renderer.end()
        # Longest first: where one control token begins another, the whole of it is broken.
        texts = sorted(vocabulary.control_texts, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None

    def start(self) -> None:
        """Have the template's process ready before the first prompt; as TemplateProcess.start."""
        if self._template is not None:
            self._template.start()

    def tokens(self, request: m.Generate) -> list[int]:
        """Return the tokens of the prompt, at least one. Raises InvalidRequest when there is no way to make them."""
        if self._template is None:
            raise InvalidRequest(
                f"The model '{self._limits.model}' has no chat template: it is a base model that cannot hold a "
                "conversation. Use its instruction-tuned variant."
            )
        strings = list(_strings(request.messages))
        self._refuse_hopeless(strings)
        mark = _unused_character([self._source, *strings])
        messages = [self._guarded(message, mark) for message in request.messages]
        rendered = self._template.render(messages, thinking=request.thinking)
        tokens = [token for piece, parse in self._pieces(rendered, mark) for token in self._read(piece, parse)]
        if self._vocabulary.adds_bos and tokens[:1] != [self._vocabulary.bos]:
            tokens.insert(0, self._vocabulary.bos)
        if not tokens:
            raise InvalidRequest("The conversation is empty: the model's chat template made no text of it.")
        return tokens

    def _read(self, piece: str, parse: bool) -> list[int]:
        return self._vocabulary.tokens(piece, parse_control=parse)

    def _refuse_hopeless(self, strings: Iterable[str]) -> None:
        """Refuse what cannot fit even if every token were the longest, before minutes are spent on reading it."""
        limit = self._limits.context_train
        size_bytes = sum(len(text.encode()) for text in strings)
        if not limit or size_bytes < limit:  # no token is shorter than a byte: only now is the longest one of interest
            return
        fewest = size_bytes // self._vocabulary.longest_bytes
        if fewest >= limit:
            raise InvalidRequest(
                f"The prompt has more than {fewest} tokens and the model's context window is {limit}: shorten the "
                "conversation."
            )

    def _guarded(self, message: m.ChatMessage, mark: str) -> dict[str, str]:
        fields = {"role": self._break(message.role, mark), "content": self._break(message.text(), mark)}
        if message.name is not None:
            fields["name"] = self._break(message.name, mark)
        if message.tool_call_id is not None:
            fields["tool_call_id"] = self._break(message.tool_call_id, mark)
        return fields

    def _break(self, text: str, mark: str) -> str:
        if self._control is None:
            return text
        return self._control.sub(lambda found: found[0][0] + mark + found[0][1:], text)

    def _pieces(self, rendered: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Yield the rendered text in pieces, each with whether control tokens in it are meant."""
        if self._control is None or mark not in rendered:
            yield rendered.replace(mark, ""), True
            return
        position = 0
        for at in (found.start() for found in re.finditer(re.escape(mark), rendered)):
            if at < position:
                continue
            # The mark stands after the first character of what it broke.
            begin = max(position, at - 1)
            broken = self._control.match(rendered[begin:at] + rendered[at + 1 : at + 1 + _LONGEST_CONTROL])
            end = at + 1 + (broken.end() - (at - begin) if broken else 0)
            if begin > position:
                yield rendered[position:begin].replace(mark, ""), True
            yield rendered[begin:end].replace(mark, ""), False
            position = end
        if position < len(rendered):
            yield rendered[position:].replace(mark, ""), True


_LONGEST_CONTROL = 512
"""Characters after a mark that are looked at; no control token is longer."""


def _strings(messages: Iterable[m.ChatMessage]) -> Iterator[str]:
    for message in messages:
        yield from (message.role, message.text(), message.name or "", message.tool_call_id or "")


def _unused_character(texts: list[str]) -> str:
    """A private-use character that occurs in none of the texts."""
    used = set().union(*texts)
    return next(chr(code) for codes in _PRIVATE_USE for code in codes if chr(code) not in used)
