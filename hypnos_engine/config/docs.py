"""Writes the tables of `docs/configuration.md` from the declarations; the text above the mark is written by hand."""

import sys
from collections.abc import Iterator
from pathlib import Path

from hypnos_engine.config.kinds import Size, size_text
from hypnos_engine.config.render import toml_value
from hypnos_engine.config.setting import Setting
from hypnos_engine.config.settings import ROOT

MARK = "<!-- From here on generated: python -m hypnos_engine.config.docs -->"


def page_path() -> Path:
    """Return where the page lies in a checkout."""
    return Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def render_page(existing: str) -> str:
    """Return the page with its tables renewed; everything above the mark stays."""
    written_by_hand = existing.partition(MARK)[0].rstrip()
    return "\n".join([written_by_hand, "", MARK, *_tables()]) + "\n"


def _tables() -> Iterator[str]:
    for table in ROOT.below():
        yield ""
        yield f"## `{table.heading}`" if table.path else "## Top level"
        yield ""
        yield table.help
        yield ""
        yield "| setting | value | default | meaning |"
        yield "|---|---|---|---|"
        for setting in table.settings:
            yield _row(setting)


def _row(setting: Setting) -> str:
    cells = (f"`{setting.name}`", setting.kind.expected, _default(setting), " ".join(_sentences(setting)))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    if setting.unset or setting.default is None:
        return setting.unset or "none"
    if isinstance(setting.kind, Size) and isinstance(setting.default, int):
        return f"{size_text(setting.default)} (`{setting.default}`)"
    shown = setting.default if isinstance(setting.default, str | int | float | tuple) else False
    return f"`{toml_value(shown)}`"


def _sentences(setting: Setting) -> Iterator[str]:
    yield setting.help
    if setting.unit and not isinstance(setting.kind, Size):
        yield f"In {setting.unit}."
    if setting.environment:
        yield f"Environment: `{setting.environment}`."
    if setting.flag:
        yield f"Flag: `{setting.flag}`."
    if not setting.effective:
        yield "*Without effect in this version.*"
    elif setting.inert:
        yield f"*{', '.join(f'`{value}`' for value in setting.inert)} without effect in this version.*"


def main() -> int:
    """Write the page of this checkout; 0 when it is there now."""
    page = page_path()
    if not page.parent.is_dir():
        sys.stderr.write("docs/ is not here: run this in a checkout of the project.\n")
        return 1
    existing = page.read_text("utf-8") if page.is_file() else ""
    page.write_text(render_page(existing), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
