"""`hypnos doctor`: shows what the checks found and ends with 1 when something has to be mended; changes nothing."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hypnos_engine.cli.layout import HelpLayout
from hypnos_engine.cli.streams import raise_when_interrupted

if TYPE_CHECKING:
    from hypnos_engine.cli.findings import Check

_DESCRIPTION = """\
Look at everything Hypnos needs on this computer and say what is missing, with the command that mends it.
Ends with 0 when all is well and with 1 when something has to be mended. It changes nothing.
"""

_REMEDY = {"fine": "hint", "note": "to change it", "broken": "to mend it"}


def add(commands: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to the command line and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="say what is missing on this computer and how to mend it",
        description=_DESCRIPTION,
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration to check")
    parser.add_argument("--json", action="store_true", help="print the findings for a program")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    from hypnos_engine.cli.checks import examine
    from hypnos_engine.cli.findings import Verdict

    raise_when_interrupted()  # the child that is asked about llama.cpp has to be ended
    findings = examine(options.config, os.environ)
    sys.stdout.write(as_json(findings) if options.json else as_text(findings, marks_for(sys.stdout, os.environ)))
    sys.stdout.flush()
    return int(any(check.verdict is Verdict.BROKEN for check in findings))


def as_json(findings: "Sequence[Check]") -> str:
    """The findings as one JSON object."""
    from hypnos_engine import __version__

    checks = [
        {"name": check.name, "verdict": check.verdict.value, "says": check.says, "mend": check.mend}
        for check in findings
    ]
    well = all(check["verdict"] != "broken" for check in checks)
    return json.dumps({"version": __version__, "ok": well, "checks": checks}, indent=2) + "\n"


def marks_for(stream: TextIO, environment: Mapping[str, str]) -> Mapping[str, str]:
    """How each verdict is marked: by signs and colours only where they can be seen."""
    if not (stream.isatty() and (stream.encoding or "").lower().replace("-", "") == "utf8"):
        return {"fine": "ok     ", "note": "note   ", "broken": "BROKEN "}
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return {"fine": "✓ ", "note": "! ", "broken": "✗ "}
    return {"fine": "\x1b[32m✓\x1b[0m ", "note": "\x1b[33m!\x1b[0m ", "broken": "\x1b[31m✗\x1b[0m "}


def as_text(findings: "Sequence[Check]", marks: Mapping[str, str]) -> str:
    """The findings for a person, each with the command that mends it below."""
    width = max(len(check.name) for check in findings)
    lines: list[str] = []
    for check in findings:
        first, *more = check.says.splitlines() or [""]
        lines.append(f"{marks[check.verdict.value]}{check.name:<{width}}  {first}")
        lines += [f"    {line}" for line in more]
        if check.mend:
            lines.append(f"    {_REMEDY[check.verdict.value]}: {check.mend}")
    broken = sum(check.verdict.value == "broken" for check in findings)
    lines += ["", f"{broken} to mend." if broken else "All is well."]
    return "\n".join(lines) + "\n"
