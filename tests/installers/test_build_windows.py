"""The Windows installer is compiled by NSIS itself; what stands in for the program has its shape, not its code."""

import re
from pathlib import Path

import pytest

from installers.bundle import icons
from installers.refusal import BuildRefused
from installers.windows.setup_program import EXECUTABLES, Setup, compile_setup, removals

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "installers" / "windows" / "hypnos.nsi"


def payload(folder: Path) -> Path:
    """Executables, a library in nested folders, and names with what NSIS and shells would read as their own."""
    for name in (*EXECUTABLES, "_internal/PySide6/Qt6Core.dll", "_internal/a $b ü.txt", "licences/README.txt"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"MZ" + name.encode())
    return folder


def test_uninstalling_deletes_the_files_that_came_and_no_others(tmp_path: Path) -> None:
    commands = removals(payload(tmp_path)).splitlines()
    assert 'Delete "$INSTDIR\\_internal\\PySide6\\Qt6Core.dll"' in commands
    assert 'Delete "$INSTDIR\\_internal\\a $$b ü.txt"' in commands
    assert not [command for command in commands if "/r" in command]
    inner, outer = 'RMDir "$INSTDIR\\_internal\\PySide6"', 'RMDir "$INSTDIR\\_internal"'
    assert commands.index(inner) < commands.index(outer)


def test_a_program_of_another_system_is_refused(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "0.1.0", tmp_path / "icon.ico", ROOT / "LICENSE")
    with pytest.raises(BuildRefused, match=r"lacks hypnos\.exe"):
        compile_setup(setup, SCRIPT, tmp_path / "setup.exe", tmp_path)


@pytest.mark.bundle
def test_nsis_makes_an_installer_without_a_warning(tmp_path: Path) -> None:
    icon = tmp_path / "hypnos.ico"
    icon.write_bytes(icons.ico({16: PNG, 256: PNG}))
    work = tmp_path / "wörk mit Raum"
    work.mkdir()
    setup = Setup(payload(tmp_path / "Hypnos"), "0.1.0", icon, ROOT / "LICENSE", compressor="zlib")
    target = work / "hypnos-0.1.0-windows-setup.exe"
    compile_setup(setup, SCRIPT, target, work)
    content = target.read_bytes()
    assert content.startswith(b"MZ")
    assert b"NullsoftInst" in content


@pytest.mark.bundle
def test_a_mistake_that_nsis_finds_is_told(tmp_path: Path) -> None:
    setup = Setup(payload(tmp_path / "Hypnos"), "0.1.0", tmp_path / "absent.ico", ROOT / "LICENSE")
    with pytest.raises(BuildRefused, match=r"absent\.ico"):
        compile_setup(setup, SCRIPT, tmp_path / "setup.exe", tmp_path)


def test_the_script_asks_for_no_administrator() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    assert "RequestExecutionLevel user" in script
    assert not re.search(r"HKLM|HKEY_LOCAL_MACHINE|RMDir /r", script)


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c636060f85f0f0002870180eb47ba920000000049454e44ae426082"
)
