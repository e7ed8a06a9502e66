"""Makes the disk image for macOS by `make_dmg.sh`; has to run on a Mac, where the application was made."""

import subprocess
import sys
from pathlib import Path

from installers.bundle.freeze import Bundling, Packaged
from installers.refusal import BuildRefused


def make(packaged: Packaged, bundling: Bundling) -> Path:
    """Write `hypnos-VERSION-macos.dmg` into `bundling.out` and return it. Raises BuildRefused."""
    if sys.platform != "darwin":
        raise BuildRefused("A disk image for macOS can only be made on a Mac.")
    target = bundling.out / f"hypnos-{packaged.version}-macos.dmg"
    script = bundling.root / "installers" / "macos" / "make_dmg.sh"
    done = subprocess.run(
        ["/bin/sh", str(script), str(packaged.folder), str(target)],
        env=dict(bundling.environment),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BuildRefused(f"{script.name} failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")
    return target
