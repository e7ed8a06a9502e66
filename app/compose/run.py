"""Starts the program once per user, and lets it end in order."""

import asyncio
import logging
import os
import sys
from pathlib import Path

from app.compose.application import Application, log_mistakes, watch_signals
from app.compose.program import Options, Program
from app.desktop import loop as desktop_loop
from app.desktop.autostart import login_entry
from app.desktop.single_instance import first_instance
from app.dialogs.trouble import TroubleWindow
from app.presenters.trouble import Surroundings, trouble
from hypnos_engine.config.paths import prepare, standard_folders
from hypnos_engine.domain.errors import HypnosError, StartRefused

log = logging.getLogger("hypnos.app")

EXIT_REFUSED = 1
MISTAKE = "Hypnos has made a mistake of its own and had to end. Its log says where; please report it."


def run(options: Options) -> int:
    """Run until the person quits; returns the exit code. Has to be called on the main thread, once per process."""
    application = Application()
    try:
        folders = standard_folders()
        prepare(folders)
        with first_instance(folders.run, lambda: program.show()) as first:
            if first is None:
                _say("Hypnos runs already; it was asked to show itself.\n")
                return 0
            loop = desktop_loop.WatchedLoop(application)
            log_mistakes(loop)
            program = Program(application, options, login_entry(os.environ, Path.home()), _say)
            application.asked_to_quit = program.quit
            watch_signals(loop, program.quit)
            desktop_loop.run_to_the_end(loop, program.run(), interrupted=program.quit)
            return 0
    except asyncio.CancelledError:
        return EXIT_REFUSED  # the display went away twice over: there is nobody to tell
    except HypnosError as error:
        return _refuse(application, error)
    except Exception as error:
        log.exception("a mistake of the program")
        return _refuse(application, StartRefused(f"{MISTAKE} ({type(error).__name__}: {error})"))


def _refuse(application: Application, error: HypnosError) -> int:
    """There is no folder to run in: say so in a window, which is all that works."""
    sys.stderr.write(f"{error.message}\n")
    window = TroubleWindow(
        trouble(error, Surroundings()), application.windowIcon(), lambda _remedy: application.exit(EXIT_REFUSED)
    )
    application.asked_to_quit = lambda: application.exit(EXIT_REFUSED)
    window.show()
    return application.exec()


def _say(text: str) -> None:
    """To the terminal that it was started from, if there is one."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError:
        return
