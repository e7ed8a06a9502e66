"""The Debian package in a system that has nothing but Debian's smallest set of packages: installed, used, removed."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.app_process import Display, display
from tests.e2e.bundled import chat, icon_in_tray, left_of, processes_of, shipped, started
from tests.e2e.engine_process import END_S

pytestmark = [pytest.mark.bundle, pytest.mark.starter, pytest.mark.display, pytest.mark.timeout(900)]

USER = "anna"
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


class Root:
    """The folder of a small system. What runs in it sees this machine's processes and X server, and its network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        """How a command is run in there; what is mounted for it is gone when it and its children have ended."""
        mount = (
            'mount -t proc proc "$0/proc" && mount --bind /tmp/.X11-unix "$0/tmp/.X11-unix" && exec chroot "$0" "$@"'
        )
        return ["unshare", "--mount", "sh", "-c", mount, str(self.folder), *arguments]

    def run(self, *arguments: str, beside: int | None = None) -> str:
        """Run a command as root in there; what it said. With `beside` it sees what that process sees as mounted."""
        entered = ["nsenter", "--mount", "--target", str(beside), "chroot", str(self.folder), *arguments]
        command = self.command(*arguments) if beside is None else entered
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        done = subprocess.run(command, env={**CLEAN, **proxies}, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def holds(self, path: str) -> bool:
        return os.path.lexists(self.folder / path.removeprefix("/"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """A minimal system of the same release as this machine's, from the same archive, with one user and no package."""
    assert os.geteuid() == 0, "a system in a folder can only be made by root"
    folder = tmp_path_factory.mktemp("system") / "root"
    sites, release = _archives()
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", release, str(folder), sites[release]],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    lines = [f"deb {site} {suite} main\n" for suite, site in sites.items()]
    (folder / "etc/apt/sources.list").write_text("".join(lines), encoding="utf-8")
    (folder / "etc/apt/apt.conf.d/80-retries").write_text('Acquire::Retries "3";\n', encoding="utf-8")
    (folder / "tmp/.X11-unix").mkdir()
    made = Root(folder)
    made.run("useradd", "--create-home", "--shell", "/bin/sh", USER)
    yield made
    shutil.rmtree(folder)


def _archives() -> tuple[dict[str, str], str]:
    """Where this machine gets each suite of its Debian from, and the name of the release."""
    wanted = ["apt-get", "indextargets", "--format", "$(RELEASE) $(SITE)", "Created-By: Packages"]
    told = subprocess.run(wanted, check=True, capture_output=True, text=True).stdout.split("\n")
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    return dict(line.split() for line in told if line.startswith(release)), release


@pytest.fixture(scope="module")
def installed(root: Root) -> Root:
    """The same system, with the package and what it requires and not a package more."""
    package = root.folder / "tmp" / shipped().deb.name
    shutil.copyfile(shipped().deb, package)
    root.run("apt-get", "update", "-qq")
    root.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", f"/tmp/{package.name}")
    package.unlink()
    return root


@pytest.fixture(scope="module")
def screen() -> Iterator[Display]:
    with display(tray=True) as shown:
        yield shown


def test_it_installs_a_command_a_menu_entry_and_an_icon_and_starts_nothing(installed: Root) -> None:
    assert installed.run("hypnos", "--version").startswith("hypnos ")
    assert installed.holds("/usr/share/applications/hypnos.desktop")
    assert installed.holds("/usr/share/icons/hicolor/scalable/apps/hypnos.svg")
    assert installed.holds("/usr/share/doc/hypnos/copyright")
    assert not installed.holds("/etc/xdg/autostart/hypnos.desktop")
    assert installed.run("dpkg", "--verify", "hypnos") == ""
    assert processes_of(installed.folder / "opt") == []


def test_a_user_chats_and_removing_the_package_ends_what_runs_and_keeps_what_is_the_users(
    installed: Root, screen: Display, tmp_path: Path
) -> None:
    """Last of this file: nothing is installed after it."""
    home = f"/home/{USER}"
    become = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", "env", "-i"]
    variables = {"HOME": home, "PATH": "/usr/bin:/bin", **screen.environment}
    command = installed.command(*become, *(f"{name}={value}" for name, value in variables.items()), "hypnos")
    with started(command, tmp_path, installed.folder / "opt", {}) as engine:
        icon_in_tray(screen)
        assert chat(engine)["choices"][0]["message"]["content"].strip()
        workers = [process for process in processes_of(installed.folder / "opt") if process.name() == "hypnos-worker"]
        assert workers
        assert {process.username() for process in workers} != {"root"}
        said = installed.run("apt-get", "remove", "-y", "-qq", "hypnos", beside=engine.process.pid)
        assert "Ending Hypnos" in said
        assert engine.process.wait(timeout=END_S) == 0
        assert left_of(installed.folder / "opt") == []
    assert not installed.holds("/opt/hypnos")
    assert not installed.holds("/usr/bin/hypnos")
    assert not installed.holds("/usr/share/applications/hypnos.desktop")
    assert installed.holds(f"{home}/.config/hypnos/hypnos.toml")
