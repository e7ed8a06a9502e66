"""`hypnos logs`: shows what the running engine's request log has, empties it and sets its level; starts no engine."""

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from hypnos_engine.cli.layout import HelpLayout
from hypnos_engine.cli.streams import raise_when_interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypnos_engine.api.client import HypnosClient
    from hypnos_engine.api.schemas.request_log import LogRecord

SHOWN: Final = 20
_LEVELS: Final = ("off", "error", "warn", "info", "debug", "trace")
_STATUSES: Final = ("ok", "error", "4xx", "5xx")
_TEXTS: Final = ("input", "output", "request_payload", "response_payload")
_EPILOG: Final = """\
Levels: `error` keeps calls that failed on this side, `warn` all that failed, `info` all; `debug` adds what was asked
and answered, `trace` the bodies as they came and went. A level holds for the calls that begin after it was set, until
the engine ends; the configuration has the first one (server.request_log_level).

exit code: 14 when there is no such record, 20 when no engine of this user runs.
"""


def add(commands: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to the command line and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "logs",
        help="show the last calls of models",
        description="The request log of the running engine, newest last.",
        epilog=_EPILOG,
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    parser.add_argument("id", nargs="?", help="show one record with all that it has: the x-request-id of an answer")
    parser.add_argument("--model", help="only calls of this model")
    parser.add_argument("--route", help="only calls of this route, as /v1/chat/completions")
    parser.add_argument("--status", choices=_STATUSES, help="only calls that ended like this")
    parser.add_argument("--key", metavar="LABEL", help="only calls of this key")
    parser.add_argument("--limit", type=_count, default=SHOWN, help=f"how many at most ({SHOWN})")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with all that a record has")
    parser.add_argument("--level", choices=_LEVELS, help="what calls keep from now on; shows nothing")
    parser.add_argument("--clear", action="store_true", help="forget every record; shows nothing")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Returns 0. Raises ModelNotAvailable when no engine runs, and what it refuses."""
    import asyncio

    raise_when_interrupted()
    asyncio.run(_run(options))
    return 0


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text[:9]) < 1:
        raise argparse.ArgumentTypeError(f"a limit is a number from 1 on, not {text[:40]!r}")
    return int(text[:9])


async def _run(options: argparse.Namespace) -> None:
    from hypnos_engine import presence
    from hypnos_engine.api.client import HypnosClient
    from hypnos_engine.config.paths import standard_folders
    from hypnos_engine.domain.errors import ModelNotAvailable

    folder = standard_folders().run
    running = presence.read(folder) if presence.is_locked(folder) else None
    if running is None:
        raise ModelNotAvailable("No Hypnos of yours is running: the request log lives as long as it. Start `hypnos`.")
    async with HypnosClient(running.address, running.token) as client:
        await _ask(client, options)


async def _ask(client: "HypnosClient", options: argparse.Namespace) -> None:
    from hypnos_engine.config.choices import LogLevel

    if options.clear:
        await client.clear_request_log()
    if options.level is not None:
        await client.set_request_log_level(LogLevel(options.level))
    if options.clear or options.level is not None:
        return
    if options.id is not None:
        _show([await client.request_log_record(options.id)], as_json=options.json, whole=True)
        return
    found = await client.request_log(
        model=options.model, route=options.route, status=options.status, key=options.key, limit=options.limit
    )
    _show(found.records[::-1], as_json=options.json, whole=False)


def _show(records: "Sequence[LogRecord]", *, as_json: bool, whole: bool) -> None:
    import msgspec

    for record in records:
        text = msgspec.json.encode(record).decode() if as_json else record_text(record, whole=whole)
        sys.stdout.write(text + "\n")


def record_text(record: "LogRecord", *, whole: bool) -> str:
    """One line for a record, and with `whole` the texts that it kept below that."""
    parts = [
        record.started_at.astimezone().isoformat(sep=" ", timespec="seconds"),
        record.id,
        f"{record.status}",
        f"{record.duration_ms:.0f} ms",
        record.model or "-",
        f"key {record.key}",
    ]
    if record.tokens_in is not None:
        parts.append(f"{record.tokens_in} + {record.tokens_out} tokens")
    if record.tokens_per_s is not None:
        parts.append(f"{record.tokens_per_s:.1f} tokens/s")
    if record.tier_switch_ms:
        parts.append(f"loaded in {record.tier_switch_ms:.0f} ms from {record.previous_tier}")
    if record.error is not None:
        parts.append(f"{record.error_type}: {record.error}")
    lines = ["  ".join(parts)]
    if whole:
        lines.extend(_texts(record))
    return _visible("\n".join(lines))


def _visible(text: str) -> str:
    """A text in which nothing tells the terminal what to do: clients and models wrote parts of it."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def _texts(record: "LogRecord") -> list[str]:
    lines = [f"{record.method} {record.route}, captured at level {record.level}"]
    for name in _TEXTS:
        text = getattr(record, name)
        if isinstance(text, str):
            lines.append(f"--- {name.replace('_', ' ')}")
            lines.append(text)
    if record.truncated:
        lines.append("--- some of these texts are not whole")
    return lines
