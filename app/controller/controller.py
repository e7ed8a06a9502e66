"""Keeps the view of one engine up to date, sends it the person's wishes, and turns refusals into notices.

Knows no widget. Whatever it starts ends with `run`.
"""

import asyncio
from collections.abc import Callable
from typing import assert_never

from app.controller.following import Following
from app.presenters import intents
from app.presenters.notices import Notice, news, over, refused
from app.state import Ended, Update, View, fold
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.domain.errors import HypnosError

PAINT_PAUSE_S = 0.05
"""Changes that come faster than this are shown together."""


class Controller:
    """One engine at `view.address`. Used on one loop.

    `changed` is called with the newest view, at most once per PAINT_PAUSE_S; `tell` with each piece of news, once.
    """

    def __init__(
        self, client: HypnosClient, view: View, *, changed: Callable[[View], None], tell: Callable[[Notice], None]
    ) -> None:
        self._client = client
        self._view = view
        self._changed = changed
        self._tell = tell
        self._told: set[str] = set()
        self._wishes: set[asyncio.Task[None]] = set()
        self._following = Following(client, self.learn)
        self._painting: asyncio.TimerHandle | None = None

    @property
    def view(self) -> View:
        return self._view

    async def run(self) -> None:
        """Follow the engine until cancelled."""
        try:
            await self._following.run()
        finally:
            if self._painting is not None:
                self._painting.cancel()
            for wish in self._wishes:
                wish.cancel()
            await asyncio.gather(*self._wishes, return_exceptions=True)

    def look_again(self) -> None:
        """Ask the engine anew at once."""
        self._following.look_again()

    def learn(self, update: Update) -> None:
        """Fold an update into the view, and tell what is news in it."""
        before, self._view = self._view, fold(self._view, update)
        self._told.difference_update(over(before, self._view))
        for notice in news(before, update, self._view):
            self.tell(notice)
        if self._painting is None and self._view is not before:
            self._painting = asyncio.get_running_loop().call_later(PAINT_PAUSE_S, self._show)

    def tell(self, notice: Notice) -> None:
        """Tell a notice unless it was told before."""
        if notice.key not in self._told:
            self._told.add(notice.key)
            self._tell(notice)

    def end(self, reason: str) -> None:
        """From now on the engine is expected to go away."""
        self.learn(Ended(reason))

    def act(self, intent: intents.EngineIntent) -> None:
        """Send a wish; what becomes of it is seen in the view, and a refusal in a notice."""
        wish = asyncio.create_task(self._carry_out(intent), name=f"wish {intent}")
        self._wishes.add(wish)
        wish.add_done_callback(self._wishes.discard)

    async def _carry_out(self, intent: intents.EngineIntent) -> None:
        try:
            await self._send(intent)
        except HypnosError as error:
            self._tell(refused(intent, error.message))  # every time: the person asked every time

    async def _send(self, intent: intents.EngineIntent) -> None:
        match intent:
            case intents.Move(model, tier):
                await self._client.move(model, tier)
            case intents.Switch(model, True):
                await self._client.enable(model)
            case intents.Switch(model, _):
                await self._client.disable(model)
            case intents.FreeGpu(for_s):
                await self._client.free(for_s)
            case intents.RestoreGpu():
                await self._client.restore()
            case _:
                assert_never(intent)

    def _show(self) -> None:
        self._painting = None
        self._changed(self._view)
