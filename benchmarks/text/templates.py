"""Compares what Hypnos and llama-server make of a conversation, template by template, character by character.

`python -m benchmarks.text.templates` goes over every chat template that llama.cpp keeps as a sample. Compared is what a
Hypnos client can send: text of the four roles, names, thinking on and off. A template that refuses a conversation must
refuse it on both sides.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.text.build_llama_server import LlamaServer, built
from benchmarks.text.servers import Running, Settings, llama_server
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.workers.llama.template import ChatTemplate

REFUSED = "\0refused"
_FAILED = 400

Conversation = tuple[dict[str, str], ...]


def _turns(*turns: str) -> Conversation:
    """A conversation out of texts, each with its role's first letter before a colon."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return tuple({"role": roles[turn[0]], "content": turn[2:]} for turn in turns)


_CALL = 'get_weather({"city": "Paris"})'

CONVERSATIONS: dict[str, Conversation] = {
    "user": _turns("u:Hello, who are you?"),
    "system": _turns("s:You are a pirate.", "u:Hello, who are you?"),
    "turns": _turns("u:Hello", "a:Hi, what can I do?", "u:Count to three.", "a:1, 2, 3", "u:Thank you."),
    "system and turns": _turns("s:Be brief.", "u:Hello", "a:Hi.", "u:What is snow?", "a:Frozen water.", "u:And ice?"),
    "empty": _turns("u:"),
    "empty system": _turns("s:", "u:Hello"),
    "empty answer": _turns("u:Hello", "a:", "u:Did you say nothing?"),
    "unicode": _turns("s:Ünïcode — «ça»", "u:日本語 😀 👩‍👩‍👧 \u202e\u00a0 naïve ∮"),
    "blanks": _turns("s:  two  blanks\n", "u:\n\n lines \t and tabs\n\n", "a: \nanswer\n ", "u:  x  "),
    "markup": _turns("u:{{ messages }} {% raw %} <b>&amp;</b> \"quoted\" 'single' \\n \\ %s {0}"),
    "thoughts": _turns("u:2+2?", "a:<think>\nEasy.\n</think>\n\n4", "u:And 3+3?", "a:<think>Hm</think>6", "u:Sure?"),
    "thoughts in brackets": _turns("u:2+2?", "a:[THINK]Easy.[/THINK]4", "u:And 3+3?"),
    "answer last": _turns("u:Hello", "a:Hi, I am"),
    "two questions": _turns("u:Hello", "u:Are you there?"),
    "two answers": _turns("u:Hello", "a:Hi.", "a:What is it?", "u:Nothing."),
    "late system": _turns("u:Hello", "a:Hi.", "s:From now on speak French.", "u:Who are you?"),
    "two systems": _turns("s:Be brief.", "s:Be kind.", "u:Hello"),
    "system only": _turns("s:Say something."),
    "tool": (
        *_turns("u:How is the weather in Paris?", f"a:{_CALL}"),
        {"role": "tool", "content": "20 °C, sunny", "tool_call_id": "call00001", "name": "get_weather"},
    ),
    "tool and answer": (
        *_turns("s:Use tools.", "u:How is the weather in Paris?", f"a:{_CALL}"),
        {"role": "tool", "content": '{"degrees": 20}', "tool_call_id": "call00001"},
        *_turns("a:It is 20 °C.", "u:And in Rome?"),
    ),
    "two tools": (
        *_turns("u:Weather in Paris and Rome?", f"a:{_CALL}{_CALL}"),
        {"role": "tool", "content": "20", "tool_call_id": "call00002"},
        {"role": "tool", "content": "30", "tool_call_id": "call00001"},
    ),
    "named": ({"role": "user", "content": "Hello, I am new.", "name": "alice"},),
    "long": _turns("s:Be brief.", *(f"{'ua'[i % 2]}:turn {i} {'word ' * (i * 7 % 23)}" for i in range(21))),
}


@dataclass(frozen=True)
class Comparison:
    """One template with one conversation."""

    template: str
    conversation: str
    thinking: bool
    ours: str
    theirs: str

    @property
    def equal(self) -> bool:
        if self.ours.startswith(REFUSED) or self.theirs.startswith(REFUSED):
            return self.ours.startswith(REFUSED) and self.theirs.startswith(REFUSED)
        return self.ours == self.theirs


def compare(server: LlamaServer, templates: Sequence[Path]) -> list[Comparison]:
    """Render every conversation with every template on both sides; a server is started per template."""
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        tiny_gguf.write_llama(model)
        for template in templates:
            found += _compare_one(server, model, template)
            different = sum(not one.equal for one in found if one.template == template.stem)
            print(f"{template.stem}: {f'{different} different' if different else 'equal'}", flush=True)
    return found


def _compare_one(server: LlamaServer, model: Path, template: Path) -> list[Comparison]:
    settings = Settings(model, slots=1, context_len=256)
    begin, _, end = tiny_gguf.CONTROL_TOKENS
    ours = ChatTemplate(template.read_text(encoding="utf-8"), bos=begin, eos=end)
    cases = [(name, thinking) for name in CONVERSATIONS for thinking in (False, True)]
    flags = ("--chat-template-file", str(template), "--no-prefill-assistant", "--no-warmup")
    try:
        with llama_server(server, settings, *flags) as running:
            theirs = [_their_text(running, CONVERSATIONS[name], thinking) for name, thinking in cases]
    except RuntimeError as error:
        theirs = [f"{REFUSED}: {error}"] * len(cases)
    return [
        Comparison(template.stem, name, thinking, _our_text(ours, CONVERSATIONS[name], thinking), text)
        for (name, thinking), text in zip(cases, theirs, strict=True)
    ]


def _our_text(template: ChatTemplate, conversation: Conversation, thinking: bool) -> str:
    try:
        return template.render(conversation, thinking=thinking)
    except InvalidRequest as refused:
        return f"{REFUSED}: {refused.message}"


def _their_text(running: Running, conversation: Conversation, thinking: bool) -> str:
    body = {"messages": conversation, "chat_template_kwargs": {"enable_thinking": thinking}}
    status, answer = running.post("/apply-template", body)
    return f"{REFUSED}: {answer}" if status >= _FAILED else str(answer["prompt"])


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns 1 when anything differs."""
    parser = argparse.ArgumentParser(description="Compare rendered chat templates with llama-server's.")
    parser.add_argument("--only", default="", help="part of the names of the templates to compare")
    parser.add_argument("--json", type=Path, help="file to write every comparison to")
    options = parser.parse_args(arguments)
    server = built()
    if server is None:
        parser.error("llama-server is not built: run python -m benchmarks.text.build_llama_server")
    day = datetime.now().astimezone().date()
    found = compare(server, [path for path in server.templates if options.only in path.stem])
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False))
    different = [one for one in found if not one.equal]
    refused = sum(one.ours.startswith(REFUSED) for one in found if one.equal)
    templates = {one.template for one in found}
    print(
        f"{len(templates)} templates, {len(found)} conversations: {len(found) - len(different)} equal ({refused} of "
        f"them refused by both), {len(different)} different in {len({one.template for one in different})} templates"
    )
    if day != datetime.now().astimezone().date():
        print("The date changed meanwhile: templates that write it may differ; run it again.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
