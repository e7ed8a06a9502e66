"""`hypnos simulate`: plays a trace of requests against the configuration and shows what would happen; starts nothing.

Nothing is loaded and no worker is started, but for the question to llama.cpp what this computer has, which
`[hardware.simulate]` saves.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypnos_engine.cli.layout import HelpLayout
from hypnos_engine.cli.streams import raise_when_interrupted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypnos_engine.scheduler.simulation.machine import SimMachine, SimModel
    from hypnos_engine.scheduler.simulation.result import SimResult

POLICIES = (
    "hypnos",
    "llama-swap",
    "llama-swap-groups",
    "ollama",
    "ollama-one-slot",
    "llama-cpp-router",
    "llama-cpp-router-fitted",
    "lemonade",
    "lemonade-scored",
)
_DESCRIPTION = """\
Play a trace of requests against the configuration's models and machine, on a virtual clock, and show who
would wait how long, what would be loaded when, and which tier each model would be in.
"""
_EPILOG = f"""\
A trace is JSONL. Its first line is {{"trace_version": 1}} and may hold a table of models, for those whose files are
not here; each other line is a request: id, model, at_s, prompt_tokens, output_tokens (or service_s), and optionally
key, weight, workflow, run, ends, next_model, deadline_ms, after, after_s.

The machine is that of [hardware.simulate], else this computer. Speeds that the trace's table does not state are
guessed from the models' sizes.

policies: {", ".join(POLICIES[:5])},
{", ".join(POLICIES[5:])}
"""


def add(commands: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to the command line and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="play a trace of requests against the configuration",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="file of requests")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration to read")
    parser.add_argument(
        "--policy",
        action="append",
        choices=POLICIES,
        metavar="NAME",
        help="who decides; may be given several times to compare (hypnos)",
    )
    parser.add_argument("--json", action="store_true", help="print the results for a program")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the tiers over time")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Simulate and print. Raises ConfigurationInvalid for a trace or a configuration that is none."""
    from hypnos_engine.cli import simulation_setting as setting
    from hypnos_engine.cli.simulation_picture import picture
    from hypnos_engine.cli.simulation_text import as_text
    from hypnos_engine.config import load as config
    from hypnos_engine.runtime.scheduling import limits_of
    from hypnos_engine.scheduler.simulation.policies.catalog import POLICIES as MAKERS
    from hypnos_engine.scheduler.simulation.run import simulate

    raise_when_interrupted()  # the child that is asked what this computer has must be ended
    trace = setting.read(options.trace)
    settings = config.load(options.config, os.environ)
    machine = setting.machine_of(settings)
    models = setting.models_for(trace, settings, machine)
    specs, limits = [model.spec for model in models], limits_of(settings)
    patience_s = settings.limits.request_timeout_secs
    results = {
        name: simulate(trace.requests, models, machine, MAKERS[name](specs, limits), patience_s=patience_s)
        for name in dict.fromkeys(options.policy or POLICIES[:1])
    }
    if options.picture is not None:
        setting.write(options.picture, picture(results, machine))
    sys.stdout.write(as_json(results, machine, models) if options.json else as_text(results, machine))
    sys.stdout.flush()
    return 0


def as_json(results: "Mapping[str, SimResult]", machine: "SimMachine", models: "Sequence[SimModel]") -> str:
    """Everything that was found out, as one JSON object."""
    from dataclasses import asdict

    from msgspec import to_builtins

    told = {
        "machine": asdict(machine),
        "models": [
            {
                "id": model.id,
                "file_bytes": model.file_bytes,
                "slots": model.slots,
                "prefill_tokens_per_s": model.prefill_tokens_per_s,
                "decode_tokens_per_s": model.decode_tokens_per_s,
            }
            for model in models
        ],
        "results": [
            {
                "policy": name,
                "end_s": result.end_s,
                "wait": asdict(result.wait),
                "loads": result.loads,
                "loading_s": result.loading_s,
                "disk_bytes": result.disk_bytes,
                "device_bytes": result.device_bytes,
                "late": result.late,
                "models": [asdict(model) for model in result.models],
                "runs": [asdict(run) for run in result.runs],
                "requests": [to_builtins(request) for request in result.requests],
                "timeline": [to_builtins(moment) for moment in result.timeline],
            }
            for name, result in results.items()
        ],
    }
    return json.dumps(told, indent=1) + "\n"
