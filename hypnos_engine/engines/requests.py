"""The unfinished requests of one worker: gives them numbers and mailboxes, and holds its words to the protocol.

A request that is answered out of order fails alone. Never waits, and never lets what a worker sends pile up.
"""

import logging
from collections.abc import Callable

from hypnos_engine.domain.errors import EngineFailed, HypnosError, error_from_code
from hypnos_engine.engines.embedding import VectorBox
from hypnos_engine.engines.mailbox import Mailbox, OutOfOrder
from hypnos_engine.ipc import messages as m

log = logging.getLogger(__name__)


class Requests:
    """Requests by the worker's number: the caller's numbers may come again, these do not."""

    def __init__(self, model: str, tell: Callable[[m.Cancel], None], waste: Callable[[], None]) -> None:
        """`tell` sends to the worker; `waste` is called for each message that is of no use to anybody."""
        self._model = model
        self._tell = tell
        self._waste = waste
        self._running: dict[int, Mailbox | VectorBox] = {}
        self._cancelled: set[int] = set()
        """Numbers that were given up and whose last message is still to come."""
        self._strayed = False
        """True once the log tells of an end that belongs to no request."""
        self.next_number = 1
        """Number of the request that is opened next."""

    @property
    def outstanding(self) -> bool:
        """True while the worker owes somebody an end."""
        return bool(self._running or self._cancelled)

    def is_running(self, request_id: int) -> bool:
        """Whether a request of this number of the caller's is unfinished."""
        return any(mailbox.id == request_id for mailbox in self._running.values())

    def open(self, request: m.Generate) -> tuple[int, Mailbox]:
        """Begin a request; return the worker's number for it and where its events arrive."""
        mailbox = Mailbox(request)
        return self._begin(mailbox), mailbox

    def open_vectors(self, request: m.Embed) -> tuple[int, VectorBox]:
        """Begin a request for vectors; return the worker's number for it and where they arrive."""
        box = VectorBox(request)
        return self._begin(box), box

    def _begin(self, box: Mailbox | VectorBox) -> int:
        number = self.next_number
        self.next_number += 1
        self._running[number] = box
        return number

    def give_up(self, number: int) -> None:
        """Cancel a request unless it has ended; told to the worker once."""
        if self._running.pop(number, None) is not None:
            self._cancelled.add(number)
            self._tell(m.Cancel(number))

    def fail_all(self, error: HypnosError) -> None:
        """End every request with an error; their last messages may still come."""
        for number, mailbox in self._running.items():
            mailbox.fail(error)
            self._cancelled.add(number)
        self._running.clear()

    def take_text(self, delta: m.Delta) -> None:
        """A piece of text has arrived."""
        mailbox = self._running.get(delta.id)
        if mailbox is None or not delta.text:
            self._waste()
        if mailbox is None:
            return  # given up, or never asked for
        try:
            if isinstance(mailbox, VectorBox):
                raise OutOfOrder("sent text instead of vectors")
            mailbox.add(delta.text, reasoning=delta.reasoning)
        except OutOfOrder as error:
            self._violated(delta.id, mailbox, error)

    def take(self, message: m.Accepted | m.Finished | m.Vectors | m.Embedded | m.Failed) -> None:
        """The beginning, a part or the end of a request has arrived."""
        last = not isinstance(message, m.Accepted | m.Vectors)
        mailbox = self._running.get(message.id)
        if mailbox is None:
            self._stray(message.id, last=last)
            return
        try:
            match message, mailbox:
                case m.Failed(), _:
                    mailbox.fail(error_from_code(message.code, message.message))
                case m.Accepted(), Mailbox():
                    mailbox.accept(message.prompt_tokens, message.cached_tokens)
                case m.Finished(), Mailbox():
                    mailbox.finish(message)
                case m.Vectors(), VectorBox():
                    mailbox.put(message)
                case m.Embedded(), VectorBox():
                    mailbox.finish(message)
                case _:
                    raise OutOfOrder(f"answered with {type(message).__name__} where that is no answer")
        except OutOfOrder as error:
            self._violated(message.id, mailbox, error)
        if last:
            self._running.pop(message.id, None)
            self._cancelled.discard(message.id)

    def _stray(self, number: int, *, last: bool) -> None:
        self._waste()
        if last and number not in self._cancelled and not self._strayed:
            self._strayed = True
            log.warning("worker of %s: ended a request that was not running", self._model)
        if last:
            self._cancelled.discard(number)

    def _violated(self, number: int, mailbox: Mailbox | VectorBox, error: OutOfOrder) -> None:
        log.warning("worker of %s: %s", self._model, error)
        mailbox.fail(EngineFailed(f"The engine of '{self._model}' broke its protocol: it {error}."))
        self.give_up(number)
