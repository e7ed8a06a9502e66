"""Renders a model's own chat template, a stranger's program, in a sandbox with bounds on time and size.

Must never let a template reach anything but the conversation, run without end, or answer with anything but a text or an
InvalidRequest. Jinja's sandbox limits neither time nor memory, so both limits are made here.
"""

import ctypes
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hypnos_engine.domain.errors import InvalidRequest

RENDER_LIMIT_S = 5.0
_LONGEST = 64 * 1024 * 1024
"""Characters or elements that one operation of a template may make."""
_LARGEST_EXPONENT = 64
_LONG_WIDTH = re.compile(r"%[-+ #0]*(\*|\d{6,})|\.(\*|\d{6,})")


class TemplateTimeout(BaseException):
    """Raised into the rendering thread; no BaseException handler of Jinja or of a template stops it."""


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
        if operator == "+" and _length(left) + _length(right) > _LONGEST:
            raise OverflowError("a text that long is not made in a template")
        if operator == "%" and isinstance(left, str) and _LONG_WIDTH.search(left):
            raise OverflowError("a field that wide is not formatted in a template")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A compiled chat template; used by one thread at a time."""

    def __init__(self, source: str, *, bos: str, eos: str, limit_s: float = RENDER_LIMIT_S) -> None:
        self._source = source
        self._limit_s = limit_s
        self._texts = {"bos_token": bos, "eos_token": eos}
        self._compiled: jinja2.Template | None = None

    def render(self, messages: Sequence[Mapping[str, str]], *, thinking: bool) -> str:
        """Return the prompt, ready for the answer to follow. Raises InvalidRequest with the template's own words."""

        def work() -> str:
            if self._compiled is None:
                self._compiled = _environment().from_string(self._source)
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                enable_thinking=thinking,
                **self._texts,
            )

        try:
            return within(self._limit_s, work)
        except TemplateTimeout:
            raise InvalidRequest(
                f"The model's chat template needs more than {self._limit_s:g} s for this conversation: shorten it, or "
                "use another model."
            ) from None
        except _Refused as refused:
            raise InvalidRequest(f"The model's chat template refuses this conversation: {refused}") from None
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequest(f"The model's chat template cannot be read: {error}. Use another model.") from error
        except Exception as error:
            raise InvalidRequest(
                f"The model's chat template fails on this conversation ({type(error).__name__}: {error})."
            ) from error


def within(limit_s: float, work: Callable[[], str]) -> str:
    """Run `work` in this thread and raise TemplateTimeout in the middle of it once `limit_s` seconds are over."""
    thread = ctypes.c_ulong(threading.get_ident())
    deciding = threading.Lock()
    done = False

    def interrupt() -> None:
        with deciding:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TemplateTimeout))

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        return work()
    finally:
        with deciding:  # from here on the timer leaves this thread alone, if it has not fired yet
            done = True
        timer.cancel()


class _Refused(Exception):
    """The template called `raise_exception`."""


def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
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


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _size(value: object) -> int:
    """A factor of a product's length: the length of a sequence, the value of a number beside one."""
    if isinstance(value, str | bytes | list | tuple):
        return max(1, len(value))
    return max(1, abs(value)) if isinstance(value, int) else 1
