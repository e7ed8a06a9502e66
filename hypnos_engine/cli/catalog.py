"""`hypnos catalog`: shows and checks the catalog, prints a model's block, takes over files; downloads nothing."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypnos_engine.cli.layout import HelpLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypnos_engine.catalog.drift import Finding
    from hypnos_engine.catalog.entries import Platform, Variant
    from hypnos_engine.catalog.files import EntryState
    from hypnos_engine.catalog.shelf import Shelf

_DESCRIPTION = "The models that Hypnos knows: what of them is on this computer, and how to configure one."
_SPEC = "model of the catalog; without a quant its default variant"


def add(commands: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to the command line and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "catalog",
        help="show, check and use the catalog of models",
        description=_DESCRIPTION,
        epilog="`hypnos --catalog-block ID[:QUANT]` is `hypnos catalog block ID[:QUANT]`.",
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=type(parser))
    listing = _action(actions, "list", "show the models", _list)
    listing.add_argument("--modality", metavar="NAME", help="only models that serve it, such as vision")
    listing.add_argument("--json", action="store_true", help="print them for a program")
    checking = _action(actions, "check", "say what is wrong with the catalog and with the files that are here", _check)
    checking.add_argument("--online", action="store_true", help="ask the hub whether its files are the listed ones")
    checking.add_argument("--endpoint", metavar="URL", help="address of the hub (HF_ENDPOINT, else the public one)")
    block = _action(actions, "block", "print the configuration that runs a model", _block)
    block.add_argument("spec", metavar="ID[:QUANT]", help=_SPEC)
    adopting = _action(actions, "adopt", "take over files of a model that another program keeps here", _adopt)
    adopting.add_argument("spec", metavar="ID[:QUANT]", help=_SPEC)
    adopting.add_argument("folder", type=Path, metavar="FOLDER", help="where to look, folders below it included")
    return parser


def _action(actions: "argparse._SubParsersAction[Any]", name: str, does: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=does, description=does[0].upper() + does[1:] + ".", formatter_class=HelpLayout, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration whose models folders count")
    parser.set_defaults(run=run)
    return parser


def _shelf(options: argparse.Namespace) -> "Shelf":
    from hypnos_engine.catalog.shelf import Shelf
    from hypnos_engine.config import load as config
    from hypnos_engine.config.starter import model_roots

    return Shelf(model_roots(config.load(options.config, os.environ).models_dirs))


def _list(options: argparse.Namespace) -> int:
    """Print the entries. Raises NotFound without a catalog, InvalidRequest for an unknown modality."""
    from hypnos_engine.domain.errors import InvalidRequest
    from hypnos_engine.domain.kinds import Modality

    shelf = _shelf(options)
    states = shelf.states()
    if options.modality is not None:
        if options.modality not in set(Modality):
            raise InvalidRequest(f"There is no modality {options.modality!r}. There are {', '.join(Modality)}.")
        states = tuple(state for state in states if options.modality in state.entry.modalities)
    sys.stdout.write(as_json(states, shelf) if options.json else as_text(states, shelf))
    return 0


def as_json(states: "Sequence[EntryState]", shelf: "Shelf") -> str:
    """The entries as one JSON object, each variant with its size and state."""
    entries = [
        {
            "id": state.entry.id,
            "name": state.entry.name,
            "license": state.entry.license,
            "modalities": [modality.value for modality in state.entry.modalities],
            "lineup": state.entry.lineup,
            "verified": state.entry.verified,
            "variants": [
                {
                    "quant": looked.variant.quant,
                    "default": looked.variant.default,
                    "size_bytes": looked.variant.size_bytes(shelf.platform),
                    "size_exact": looked.variant.is_exact(shelf.platform),
                    "installed": looked.installed,
                    "outdated": looked.outdated,
                    "problem": looked.problem,
                }
                for looked in state.variants
            ],
        }
        for state in states
    ]
    return json.dumps({"object": "list", "data": entries}, indent=1) + "\n"


def as_text(states: "Sequence[EntryState]", shelf: "Shelf") -> str:
    """A table for a person: one line a variant, `*` for the one that is used when none is named."""
    rows: list[tuple[str, ...]] = [("MODEL", "QUANT", "SIZE", "HERE", "SERVES", "LICENSE")]
    for state in states:
        entry = state.entry
        for looked in state.variants:
            if not looked.files:
                continue  # it does not run on this computer
            quant = looked.variant.quant + ("*" if looked.variant.default else "")
            size = _size(looked.variant, shelf.platform)
            here = "problem" if looked.problem else "outdated" if looked.outdated else "yes" if looked.installed else ""
            mark = "" if entry.verified else " ?"
            rows.append((entry.id + mark, quant, size, here, ", ".join(entry.modalities), entry.license))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    notes = ["", "* used when no quant is named.  ? something about it is not known: it is never recommended."]
    return "\n".join(line.rstrip() for line in (*lines, *notes)) + "\n"


def _size(variant: "Variant", platform: "Platform") -> str:
    size_bytes = variant.size_bytes(platform)
    if not variant.is_sized(platform):
        return "?"
    shown = f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.0f} MB"
    return shown if variant.is_exact(platform) else f"~{shown}"


def _block(options: argparse.Namespace) -> int:
    """Print a block. Raises NotFound and InvalidRequest."""
    from hypnos_engine.catalog.blocks import config_block
    from hypnos_engine.catalog.choosing import choose
    from hypnos_engine.catalog.shelf import Shelf

    shelf = Shelf(())
    entry, variant = choose(shelf.catalog(), options.spec)
    sys.stdout.write(config_block(entry, variant, shelf.platform))
    return 0


def _check(options: argparse.Namespace) -> int:
    """Print what is wrong; 1 when something is. Raises NotFound for a catalog that cannot be used."""
    from hypnos_engine.catalog.blocks import config_block
    from hypnos_engine.config.render import parse_model

    shelf = _shelf(options)
    states = shelf.states()
    wrong = 0
    for state in states:
        for looked in state.variants:
            spec = f"{state.entry.id}:{looked.variant.quant}"
            parse_model(config_block(state.entry, looked.variant, shelf.platform), f"the block of {spec}")
            says = [looked.problem] if looked.problem else []
            says += [f"{one.file.local} has another size than listed" for one in looked.files if one.outdated]
            wrong += len(says)
            sys.stdout.write("".join(f"{spec}: {sentence}\n" for sentence in says))
    variants = sum(len(state.variants) for state in states)
    sys.stdout.write(f"{len(states)} models, {variants} variants; {wrong} with something wrong on this computer.\n")
    if options.online:
        wrong += _check_online(shelf, options.endpoint)
    return int(wrong > 0)


def _check_online(shelf: "Shelf", endpoint: str | None) -> int:
    from hypnos_engine.catalog.drift import FAULTS, Kind, check_online

    faults = unknown = 0
    for finding in check_online(shelf.catalog(), endpoint=endpoint):
        faults += finding.kind in FAULTS
        unknown += finding.kind is Kind.UNREACHABLE
        sys.stdout.write(_line(finding))
        sys.stdout.flush()
    sys.stdout.write(f"The hub contradicts the catalog {faults} times; {unknown} files could not be asked for.\n")
    return faults


def _line(finding: "Finding") -> str:
    return f"{finding.kind.value:<11} {finding.spec} {finding.local}: {finding.message}\n"


def _adopt(options: argparse.Namespace) -> int:
    """Link or copy what was found; 1 when something is still missing. Raises InvalidRequest, FolderUnusable."""
    from hypnos_engine.catalog.adopting import find_copies
    from hypnos_engine.catalog.choosing import choose
    from hypnos_engine.catalog.files import look_at_file
    from hypnos_engine.catalog.placing import bring_in
    from hypnos_engine.domain.errors import InvalidRequest

    shelf = _shelf(options)
    _, variant = choose(shelf.catalog(), options.spec)
    if not options.folder.is_dir():
        raise InvalidRequest(f"There is no folder {options.folder}.")
    wanted = [file for file in variant.files_for(shelf.platform) if not look_at_file(file, shelf.roots).present]
    for match in find_copies(wanted, options.folder):
        placed = bring_in(match.path, shelf.roots[0], match.file.local)
        how = "its sha256 is the listed one" if match.by_digest else "its name and size are the listed ones"
        sys.stdout.write(f"{placed} is {match.path}: {how}\n")
        wanted.remove(match.file)
    for file in wanted:
        sys.stdout.write(f"{file.local} was not found.\n")
    return int(bool(wanted))
