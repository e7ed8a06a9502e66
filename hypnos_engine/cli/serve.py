"""`hypnos serve`: starts the engine in this terminal and says where it is; decides nothing about how it runs."""

import argparse
import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypnos_engine.cli.layout import HelpLayout
from hypnos_engine.cli.streams import let_go

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hypnos_engine.daemon import Announcement
    from hypnos_engine.journal import LogFormat

_DESCRIPTION = """\
Serve the configured models until Ctrl-C or SIGTERM, which lets running answers end first; a second one
ends at once. Without a configuration a starter one is written.
"""
QUESTION = "What is gravity? Answer in one sentence."
"""Asked by the line that is printed; a small model can answer it."""
_EPILOG = """\
environment: HYPNOS_CONFIG, HYPNOS_HOST, HYPNOS_PORT, HYPNOS_API_KEYS (comma separated), HYPNOS_MODELS_DIR.
A flag wins over the environment, the environment over the file.

exit code: 0 after Ctrl-C or SIGTERM; 130 after a second Ctrl-C, 143 after a second SIGTERM, and also after the first
while the program is still being loaded. Others are refused starts, each with its reason.
"""


def add(commands: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to the command line and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="serve models (the default)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    parser.add_argument("--host", help="address to listen on (127.0.0.1: this computer only)")
    parser.add_argument("--port", type=port_number, help="TCP port to listen on (9999)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration to read")
    parser.add_argument("--models-dir", type=Path, metavar="FOLDER", help="first folder to look for models in")
    parser.add_argument("--demo", action="store_true", help="serve invented answers, without any weights")
    parser.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="allow an address that others can reach although no API key is set",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="how the log is spelled, in its file and in the terminal (text)",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Serve until told to end. Raises StartRefused and its kin."""
    import asyncio

    from hypnos_engine.daemon import ServeRequest, serve
    from hypnos_engine.journal import LogFormat

    log_format = LogFormat(options.log_format)
    _log_to_terminal(options.verbose, log_format)
    request = ServeRequest(
        config=options.config,
        host=options.host,
        port=options.port,
        models_dir=options.models_dir,
        demo=options.demo,
        insecure_no_auth=options.insecure_no_auth,
        log_format=log_format,
    )
    # On the main thread: workers must be started from a thread that lives as long as the program.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(request, announce=announce, announce_ready=announce_ready))
    return 0


def port_number(text: str) -> int:
    """Return a port as a number. Raises argparse's error."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text[:40]!r}")
    return int(text)


def loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """uvloop's loop where it is installed, None (Python's own) elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def announce(announcement: "Announcement") -> None:
    """Tell the person where the engine is; a terminal that is gone does not stop it."""
    _say(announcement_text(announcement))


def announce_ready(announcement: "Announcement") -> None:
    """Tell the person that the models are in place, and what to try."""
    _say(ready_text(announcement))


def _say(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        let_go(sys.stdout)


def announcement_text(announcement: "Announcement") -> str:
    """What is printed once the address answers; the models may still be on their way."""
    lines = [
        f"Hypnos serves {_count(len(announcement.models))} at {_root(announcement)}/v1",
        "",
        f"configuration  {announcement.config_path or 'none: the defaults hold'}",
        *(f"models         {folder}" for folder in announcement.models_dirs),
        f"logs           {announcement.log_dir}",
        *(f"note           {notice}" for notice in announcement.notices),
        "",
    ]
    return "\n".join(lines)


def ready_text(announcement: "Announcement") -> str:
    """What is printed once a pasted line is answered."""
    model = announcement.first_model
    line = curl_line(_root(announcement), model, needs_key=announcement.needs_key)
    about = (
        "Ready. Try it in another terminal:" if model else "Ready, but no text model is configured yet. See what is:"
    )
    return f"\n{about}\n  {line}\n\nCtrl-C ends it.\n"


def _root(announcement: "Announcement") -> str:
    return announcement.address.rstrip("/").removesuffix("/v1")


def curl_line(root: str, model: str | None, *, needs_key: bool = False, windows: bool = os.name == "nt") -> str:
    """One command that works as pasted; without a model it lists the models."""
    program, variable = ("curl.exe", "%HYPNOS_KEY%") if windows else ("curl", "$HYPNOS_KEY")
    key = f' -H "authorization: Bearer {variable}"' if needs_key else ""
    if model is None:
        return f"{program} {root}/v1/models{key}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": QUESTION}]})
    quoted = '"' + body.replace('"', '\\"') + '"' if windows else shlex.quote(body)
    return f'{program} {root}/v1/chat/completions{key} -H "content-type: application/json" -d {quoted}'


def _count(models: int) -> str:
    return f"{models} model{'' if models == 1 else 's'}"


def _log_to_terminal(verbose: int, log_format: "LogFormat") -> None:
    from hypnos_engine.journal import formatter, mark_request

    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.addFilter(mark_request)
    handler.setFormatter(formatter(log_format, timed=False))
    logging.getLogger().addHandler(handler)
    if verbose:
        logging.getLogger().setLevel(level)
