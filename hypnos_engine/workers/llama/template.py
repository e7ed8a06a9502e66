"""Renders a model's own chat template, a stranger's program, in Jinja's sandbox; must never reach beyond it.

The sandbox keeps a template from touching anything but the conversation and refuses the single operations that are out
of all proportion. It bounds neither time nor memory, and nothing inside a Python process can: comparing, hashing or
printing lists nested forty deep runs in C, where no exception reaches it. So this module runs only in the small process
of `template_program`, which `template_process` bounds from outside.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.workers.llama.template_forms import Forms, Message, learn

_LONGEST = 64 * 1024 * 1024
"""Characters or elements that one operation of a template may make."""
_LARGEST_EXPONENT = 64
_LONG_WIDTH = re.compile(r"%[-+ #0]*(\*|\d{6,})|\.(\*|\d{6,})")
_KEEP_THOUGHTS = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
"""The names by which templates are told to leave earlier turns as they were: what is cached of them stays of use."""
_SAID_CHARACTERS = 500
"""How much of a template's own words an error repeats."""


class _Generation(Extension):
    """`{% generation %}` marks training text in some templates; its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - declared by Jinja as an attribute of instances

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse the operations whose result can be out of all proportion to their operands."""
        if operator == "**" and (abs(right) > _LARGEST_EXPONENT or abs(left) > _LONGEST):
            raise OverflowError("a power that large is not computed in a template")
        if operator == "*" and _size(left) * _size(right) > _LONGEST:
            raise OverflowError("a product that long is not made in a template")
        if operator == "+" and isinstance(left, str) and _is_nothing(right):
            return left
        if operator == "+" and isinstance(right, str) and _is_nothing(left):
            return right
        if operator == "+" and _length(left) + _length(right) > _LONGEST:
            raise OverflowError("a text that long is not made in a template")
        if operator == "%" and isinstance(left, str) and _LONG_WIDTH.search(left):
            raise OverflowError("a field that wide is not formatted in a template")
        return super().call_binop(context, operator, left, right)


class _Nothing(jinja2.ChainableUndefined):
    """What is not there; parts of it are not there either, as llama.cpp reads templates. Not so what is forbidden."""

    __slots__ = ()

    @property
    def is_forbidden(self) -> bool:
        return issubclass(self._undefined_exception, SecurityError)

    def __getattr__(self, name: str) -> Any:
        return self._fail_with_undefined_error() if self.is_forbidden else super().__getattr__(name)

    def __getitem__(self, name: Any) -> Any:
        return self._fail_with_undefined_error() if self.is_forbidden else self


class ChatTemplate:
    """A chat template, compiled on its first use."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        self._source = source
        self._texts = {"bos_token": bos, "eos_token": eos}
        self._compiled: jinja2.Template | None = None
        self._forms = Forms()

    def render(self, messages: Sequence[Mapping[str, object]], *, thinking: bool) -> str:
        """Return the prompt, ready for the answer to follow.

        Raises InvalidRequest with the template's own words, and MemoryError.
        """
        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self._source)
                self._forms = learn(self._source, self._attempt)
            return self._written(self._compiled, self._forms.fitted(messages), thinking=thinking)
        except MemoryError:
            raise
        except _Refused as refused:
            raise InvalidRequest(f"The model's chat template refuses this conversation: {_said(refused)}") from None
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequest(
                f"The model's chat template cannot be read: {_said(error)}. Use another model."
            ) from error
        except Exception as error:
            raise InvalidRequest(
                f"The model's chat template fails on this conversation ({type(error).__name__}: {_said(error)})."
            ) from error

    def _attempt(self, messages: list[Message]) -> str | None:
        assert self._compiled is not None
        try:
            return self._written(self._compiled, messages, thinking=False)
        except MemoryError:
            raise
        except Exception:
            return None

    def _written(self, compiled: jinja2.Template, messages: list[Message], *, thinking: bool) -> str:
        now = datetime.now().astimezone()
        return compiled.render(
            messages=messages,
            add_generation_prompt=True,
            enable_thinking=thinking,
            datetime=now.strftime("%b %d %Y"),
            date_string=now.strftime("%d %b %Y"),
            **_KEEP_THOUGHTS,
            **self._texts,
        )


class _Refused(Exception):
    """The template called `raise_exception`."""


def _said(error: Exception) -> str:
    return str(error)[:_SAID_CHARACTERS]


def _environment() -> _Sandbox:
    extensions = [loopcontrols, _Generation]
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, undefined=_Nothing, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.filters["center"] = _center
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment


def _refuse(message: object = "no reason given") -> None:
    raise _Refused(str(message))


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: Jinja's own filter escapes what HTML would misread, which no model has seen."""
    if indent is not None and not 0 <= indent <= 16:
        raise OverflowError("an indentation that deep is not made in a template")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _center(value: str, width: int = 80) -> str:
    return str(value).center(min(width, 10_000))


def _is_nothing(value: object) -> bool:
    """True for null and for what is not there."""
    return value is None or (isinstance(value, _Nothing) and not value.is_forbidden)


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _size(value: object) -> int:
    """A factor of a product's length: the length of a sequence, the value of a number beside one."""
    if isinstance(value, str | bytes | list | tuple):
        return max(1, len(value))
    return max(1, abs(value)) if isinstance(value, int) else 1
