"""The life of the desktop program: comes by an engine, shows it until told otherwise, asks when there can be none.

The order of ending: no new requests, running ones finish, then the engine, then the windows.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices

from app.compose.application import Application
from app.compose.screen import Screen
from app.controller.controller import Controller
from app.desktop import power
from app.desktop.autostart import LoginEntry
from app.desktop.icons import tray_icon
from app.dialogs.trouble import TroubleWindow
from app.engine_host import Reached, ServeRequest, config_file, free_port_beside, reached_engine, was_replaced
from app.presenters import intents
from app.presenters.faces import Mood
from app.presenters.notices import Notice, Weight
from app.presenters.trouble import GiveUp, Open, Remedy, Surroundings, TryAgain, trouble
from app.presenters.words import api_address
from app.state import Phase, View
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.config.paths import standard_folders
from hypnos_engine.domain.errors import HypnosError

log = logging.getLogger("hypnos.app")

LONGEST_DRAIN_S = 10.0
"""How long running answers keep a program that was told to quit; a second wish to quit cuts them off."""


class _Leave(Enum):
    """Why an engine's windows are left."""

    QUIT = auto()
    START_ANEW = auto()
    """Another engine is to be shown, or this program is to run one."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the program was asked for on its command line."""

    request: ServeRequest
    at_login: bool = False


class Program:
    """Made once, on the loop that it runs on. `say` tells the terminal where the engine is, if there is one."""

    def __init__(
        self, application: Application, options: Options, entry: LoginEntry | None, say: Callable[[str], None]
    ) -> None:
        self._application = application
        self._options = options
        self._entry = entry
        self._say = say
        self._controller: Controller | None = None
        self._reached: Reached | None = None
        self._phase = Phase.STARTING
        self._leave: asyncio.Queue[_Leave] = asyncio.Queue()
        self._remedies: asyncio.Queue[Remedy] = asyncio.Queue()
        self._screen = Screen(application, self.act, self._starts_at_login)

    async def run(self) -> None:
        """Return when the person has quit or given up."""
        listening = power.listen(self._slept, self._application)
        self._screen.appear(at_login=self._options.at_login)
        try:
            await self._serve_until_quit(self._options.request)
        finally:
            self._screen.disappear()
            del listening

    async def _serve_until_quit(self, request: ServeRequest) -> None:
        while True:
            try:
                if await self._serve(request) is _Leave.QUIT:
                    return
            except HypnosError as error:
                changed = await self._ask(error, request)
                if changed is None:
                    return
                request = changed

    def show(self) -> None:
        """Another start of the program asked for this one."""
        self._screen.show_status()

    # --- one engine ---

    async def _serve(self, request: ServeRequest) -> _Leave:
        async with reached_engine(request) as reached:
            self._reached = reached
            self._forget_wishes_to_start_anew()
            view = View(reached.address, reached.own)
            async with HypnosClient(reached.address, reached.token) as client:
                self._controller = Controller(client, view, changed=self._changed, tell=self._screen.tell)
                self._phase = view.phase
                self._screen.show_view(view)
                self._say(f"Hypnos serves at {api_address(view)}\n")
                for text in reached.first_notices:
                    self._controller.tell(_note(text, reached.config_file))
                try:
                    return await self._until_left(self._controller, reached)
                finally:
                    self._controller = None
                    self._reached = None

    def _forget_wishes_to_start_anew(self) -> None:
        """Those of the engine before are granted with this one; a wish to quit stands."""
        wishes = []
        while not self._leave.empty():
            wishes.append(self._leave.get_nowait())
        for wish in wishes:
            if wish is _Leave.QUIT:
                self._leave.put_nowait(wish)

    async def _until_left(self, controller: Controller, reached: Reached) -> _Leave:
        following = asyncio.create_task(controller.run(), name="following the engine")
        staging = asyncio.create_task(reached.stage(), name="staging")
        leaving = asyncio.create_task(self._leave.get(), name="leaving")
        tasks = {following, staging, leaving}
        try:
            while not leaving.done():
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {leaving}:
                    task.result()
            leave = leaving.result()
            if leave is _Leave.QUIT:
                await self._end(controller, reached, following)
            return leave
        finally:
            for task in (following, staging, leaving):
                task.cancel()
            await asyncio.gather(following, staging, leaving, return_exceptions=True)

    async def _end(self, controller: Controller, reached: Reached, following: "asyncio.Task[None]") -> None:
        busy = sum(model.leases for model in controller.view.models)
        controller.end("Ending; answers that are being written may finish." if busy and reached.own else "Ending.")
        self._screen.show_view(controller.view)
        following.cancel()
        drained = asyncio.create_task(reached.drain(LONGEST_DRAIN_S), name="drain")
        again = asyncio.create_task(self._leave.get(), name="quitting at once")
        try:
            await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (drained, again):
                task.cancel()
            await asyncio.gather(drained, again, return_exceptions=True)

    def _changed(self, view: View) -> None:
        if view.phase is not self._phase:
            self._phase = view.phase
            log.info("the engine at %s is %s", view.address, view.phase)
        self._screen.show_view(view)
        reached = self._reached
        lost = view.phase is Phase.UNREACHABLE and not view.own
        if lost and reached is not None and was_replaced(reached):
            self._leave.put_nowait(_Leave.START_ANEW)

    # --- no engine ---

    async def _ask(self, error: HypnosError, request: ServeRequest) -> ServeRequest | None:
        """Say what is wrong until the person picks a way on; None when they give up."""
        log.info("the engine cannot start: %s", error.message)
        self._screen.show_view(View("", own=True, phase=Phase.UNREACHABLE, reason=error.message))
        around = Surroundings(config_file(request), _log_folder(), free_port_beside(request))
        icon = tray_icon(Mood.ATTENTION, None, dark=self._application.is_dark, template=False)
        window = TroubleWindow(trouble(error, around), icon, self._remedies.put_nowait)
        while not self._remedies.empty():
            self._remedies.get_nowait()  # of a window that is gone
        window.show()
        window.raise_()
        try:
            return await self._picked(request)
        finally:
            window.hide()
            window.deleteLater()

    async def _picked(self, request: ServeRequest) -> ServeRequest | None:
        while True:
            leaving = asyncio.create_task(self._leave.get())
            picking = asyncio.create_task(self._remedies.get())
            try:
                await asyncio.wait({leaving, picking}, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    return None if leaving.result() is _Leave.QUIT else request
                match picking.result():
                    case GiveUp():
                        return None
                    case TryAgain(None):
                        return request
                    case TryAgain(port):
                        return replace(request, port=port)
                    case Open(path):
                        _open(path)
            finally:
                leaving.cancel()
                picking.cancel()

    # --- wishes ---

    def act(self, intent: intents.Intent) -> None:
        """Carry out what a person asked for, here or at the engine."""
        match intent:
            case intents.Quit():
                self._leave.put_nowait(_Leave.QUIT)
            case intents.StartHere():
                self._leave.put_nowait(_Leave.START_ANEW)
            case intents.ShowStatus():
                self._screen.show_status()
            case intents.ShowRequests():
                self._screen.show_requests()
            case intents.ShowAbout():
                self._screen.show_about()
            case intents.OpenFile(path):
                _open(path)
            case intents.CopyAddress():
                if self._controller is not None:
                    self._application.clipboard().setText(api_address(self._controller.view))
            case intents.OpenPage():
                if self._controller is not None:
                    QDesktopServices.openUrl(QUrl(self._controller.view.address))
            case intents.StartAtLogin(wanted):
                self._switch_login(wanted=wanted)
            case _:
                if self._controller is not None:
                    self._controller.act(intent)

    def quit(self) -> None:
        """The system asks to end."""
        self.act(intents.Quit())

    def _switch_login(self, *, wanted: bool) -> None:
        if self._entry is None:
            return
        try:
            self._entry.switch(wanted=wanted)
        except HypnosError as error:
            title = "Start at login was not changed"
            self._screen.tell(Notice(f"login {error.message}", title, error.message))

    def _starts_at_login(self) -> bool | None:
        return None if self._entry is None else self._entry.is_on()

    def _slept(self, begins: bool) -> None:
        if not begins and self._controller is not None:
            self._controller.look_again()


def _note(text: str, file: Path | None) -> Notice:
    action = intents.OpenFile(file) if file is not None else None
    return Notice(f"start {text}", "At the start", text, Weight.NOTE, action, "Open configuration" if action else "")


def _open(path: Path) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(os.fspath(path)))


def _log_folder() -> Path | None:
    with suppress(HypnosError):
        return standard_folders().logs
    return None
