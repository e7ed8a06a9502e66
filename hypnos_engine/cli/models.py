"""`hypnos models`: downloads models, lists, checks and removes those that are here; starts no engine."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hypnos_engine.cli.layout import HelpLayout
from hypnos_engine.cli.streams import raise_when_interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hypnos_engine.catalog.entries import CatalogFile
    from hypnos_engine.catalog.files import FileState, VariantState
    from hypnos_engine.catalog.shelf import Shelf
    from hypnos_engine.config.settings import Settings

NAME: Final = "models"
ACTIONS: Final = ("list", "pull", "rm", "verify")
_SPEC: Final = "ID[:QUANT]"
_ABOUT_SPEC: Final = "model of the catalog; without a quant its default variant"


def add(commands: "argparse._SubParsersAction[Any]") -> argparse.ArgumentParser:
    """Add the command to the command line and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        NAME,
        help="download, list, check and remove models",
        description="The models on this computer, and how others get here.",
        epilog="`hypnos models ID[:QUANT]` is `hypnos models pull ID[:QUANT]`.",
        formatter_class=HelpLayout,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=type(parser))
    _action(actions, "list", "show the models that are here", _list)
    pulling = _action(actions, "pull", "download models; goes on where an earlier download ended", _pull)
    pulling.add_argument("specs", nargs="+", metavar=_SPEC, help=f"{_ABOUT_SPEC}; or OWNER/REPOSITORY/FILE of the hub")
    pulling.add_argument("--again", action="store_true", help="download also what is here with the right size")
    pulling.add_argument("--ask-token", action="store_true", help="read an access token for gated repositories first")
    removing = _action(actions, "rm", "remove the files of models", _remove)
    removing.add_argument("specs", nargs="+", metavar=_SPEC, help=_ABOUT_SPEC)
    removing.add_argument("--force", action="store_true", help="also when the configuration names them")
    checking = _action(actions, "verify", "read the files of models and compare them with what is listed", _verify)
    checking.add_argument("specs", nargs="*", metavar=_SPEC, help=f"{_ABOUT_SPEC}; all that are here when left out")
    return parser


def _action(actions: "argparse._SubParsersAction[Any]", name: str, does: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=does, description=does[0].upper() + does[1:] + ".", formatter_class=HelpLayout, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration whose models folders count")
    parser.set_defaults(run=run)
    return parser


def with_action(arguments: "Sequence[str]") -> list[str]:
    """Put `pull` in front of models that are named without an action (contract §19-36)."""
    first = arguments[1] if len(arguments) > 1 else "-"
    plain = first in ACTIONS or first.startswith("-")
    return [*arguments] if plain else [arguments[0], "pull", *arguments[1:]]


def _settings(options: argparse.Namespace) -> "Settings":
    from hypnos_engine.config import load as config

    return config.load(options.config, os.environ)


def _shelf(settings: "Settings") -> "Shelf":
    from hypnos_engine.catalog.shelf import Shelf
    from hypnos_engine.config.starter import model_roots

    return Shelf(model_roots(settings.models_dirs))


def _pull(options: argparse.Namespace) -> int:
    """Download; returns 0 when everything is here. Raises what the engine or the download refuses."""
    from hypnos_engine.cli.pulling import Wish, pull

    raise_when_interrupted()  # the child that downloads has to be ended
    settings = _settings(options)
    token = _ask_token() if options.ask_token else None
    return pull(settings, _shelf(settings), Wish(tuple(options.specs), token, again=options.again))


def _ask_token() -> str | None:
    """A token that is typed without being shown, or the first line of what is piped in."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip() or None
    from getpass import getpass

    return getpass("Access token of the hub: ").strip() or None


def _list(options: argparse.Namespace) -> int:
    """Print what is here, a line each. Raises NotFound without a catalog."""
    shelf = _shelf(_settings(options))
    lines = 0
    for spec, looked in _looked(shelf):
        here = [state for state in looked.files if state.present]
        if here:
            lines += 1
            size = sum(_size_of(state) for state in here)
            sys.stdout.write(f"{spec:<40} {size / 1e9:>9.2f} GB  {_word(looked)}\n")
    if not lines:
        sys.stdout.write("No model of the catalog is here. `hypnos catalog list` shows what there is.\n")
    return 0


def _looked(shelf: "Shelf") -> "Iterator[tuple[str, VariantState]]":
    for state in shelf.states():
        for looked in state.variants:
            yield f"{state.entry.id}:{looked.variant.quant}", looked


def _word(looked: "VariantState") -> str:
    if looked.problem:
        return looked.problem
    if looked.outdated:
        return "outdated"
    return "" if looked.installed else "incomplete"


def _size_of(state: "FileState") -> int:
    if state.path is None:
        return 0
    if state.path.is_dir():
        return sum(file.stat().st_size for file in state.path.rglob("*") if file.is_file())
    return state.path.stat().st_size


def _remove(options: argparse.Namespace) -> int:
    """Remove files that nothing else needs. Raises InvalidRequest for what the configuration names."""
    from hypnos_engine.catalog.choosing import choose
    from hypnos_engine.domain.errors import InvalidRequest

    settings = _settings(options)
    shelf = _shelf(settings)
    chosen = [choose(shelf.catalog(), spec) for spec in options.specs]
    going = {f"{entry.id}:{variant.quant}" for entry, variant in chosen}
    needed = {
        state.file.local
        for spec, looked in _looked(shelf)
        if spec not in going and looked.installed
        for state in looked.files
    }
    for entry, variant in chosen:
        spec = f"{entry.id}:{variant.quant}"
        files = variant.files_for(shelf.platform)
        using = _users(files, settings)
        if using and options.force and _engine_runs():
            raise InvalidRequest(
                f"Hypnos is running and may have files of {spec} open. End it first, or take {', '.join(using)} out of "
                "the configuration."
            )
        if using and not options.force:
            raise InvalidRequest(
                f"The configuration's {', '.join(using)} uses files of {spec}. Take it out of the configuration first, "
                "or add --force."
            )
        _remove_files(spec, files, shelf, needed)
    return 0


def _engine_runs() -> bool:
    from hypnos_engine import presence
    from hypnos_engine.config.paths import standard_folders

    run = standard_folders().run
    return run.is_dir() and presence.is_locked(run)


def _users(files: "Sequence[CatalogFile]", settings: "Settings") -> list[str]:
    """Ids of configured models that name one of the files."""
    locals_ = tuple(file.local.rstrip("/") for file in files)
    using: list[str] = []
    for model in settings.models:
        paths = (
            model.weights_path,
            model.aux_path,
            model.text_encoder_path,
            model.tokenizer_path,
            model.voices_path,
        )
        if any(path and (path == local or path.startswith(f"{local}/")) for path in paths for local in locals_):
            using.append(model.id)
    return using


def _remove_files(spec: str, files: "Sequence[CatalogFile]", shelf: "Shelf", needed: set[str]) -> None:
    import shutil

    from hypnos_engine.catalog.files import look_at_file
    from hypnos_engine.domain.errors import FolderUnusable

    for file in files:
        state = look_at_file(file, shelf.roots)
        if state.path is None or not state.present:
            continue
        if file.local in needed:
            sys.stdout.write(f"{spec}: {file.local} stays, another model here needs it\n")
            continue
        try:
            shutil.rmtree(state.path) if state.path.is_dir() else state.path.unlink()
        except OSError as error:
            raise FolderUnusable(f"{state.path} cannot be removed ({error.strerror}).") from error
        sys.stdout.write(f"{spec}: {state.path} is removed\n")


def _verify(options: argparse.Namespace) -> int:
    """Read the files; returns 1 when one is missing or is not what is listed."""
    from hypnos_engine.cli.verifying import verify_files

    raise_when_interrupted()
    shelf = _shelf(_settings(options))
    if not options.specs:
        named = [
            (spec, looked.variant.files_for(shelf.platform)) for spec, looked in _looked(shelf) if looked.installed
        ]
    else:
        from hypnos_engine.catalog.choosing import choose

        chosen = [choose(shelf.catalog(), spec) for spec in options.specs]
        named = [(f"{entry.id}:{variant.quant}", variant.files_for(shelf.platform)) for entry, variant in chosen]
    return int(not verify_files(named, shelf))
