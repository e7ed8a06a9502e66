"""Brings the text worker up: waits for Load, loads with progress, checks that the model computes, then serves.

Imports the library only when asked to run, so that the greeting comes at once and a missing library is a typed failure.
"""

from typing import TYPE_CHECKING, cast

from hypnos_engine.domain.errors import Cancelled, HypnosError, LoadFailed
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers import process
from hypnos_engine.workers.beside import Beside
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama import binding

if TYPE_CHECKING:
    from hypnos_engine.workers.llama.embedding import EmbeddingEngine
    from hypnos_engine.workers.llama.embedding_texts import TextsRead
    from hypnos_engine.workers.llama.engine import TextEngine
    from hypnos_engine.workers.llama.preparing import Prepared
    from hypnos_engine.workers.llama.template_process import Renderer

_REASON_CHARACTERS = 300


def open_channel(read_fd: int, write_fd: int) -> "Channel[Prepared]":
    """The channel of a text worker; the inbox also takes prepared prompts."""
    return Channel(read_fd, write_fd)


def run(channel: "Channel[Prepared]", *, spare: bool = False) -> int:
    """Serve one model until Shutdown; return the exit status. Nobody waits for a `spare` while it imports its library.

    It is imported before a Load has come, so that a spare is ready when one comes.
    """
    library = Beside(_import_gently, "import").result() if spare else _import_library()
    request = _wait_for_load(channel, library)
    if request is None:
        return 0
    try:
        if isinstance(library, HypnosError):
            raise library
        engine = library.bring_up(channel, request)
    except Cancelled:
        return 0
    except HypnosError as error:
        channel.send(m.LoadFailed(error.code, error.message))
        return 0
    return engine.run()


class _Library:
    """The imported library, and what is ready beside it before a model is known. No device is opened before a load."""

    def __init__(self) -> None:
        """Raises LoadFailed, ImportError, OSError or RuntimeError when it is not usable."""
        binding.prepare()
        from hypnos_engine.workers.llama import embedding_loading, loading, native, template_process

        native.attach()
        self._start = native.start
        self._bring_up_text = loading.bring_up
        self._bring_up_vectors = embedding_loading.bring_up
        self._start_renderer = template_process.renderer_ahead
        self._renderer: Renderer | None = None

    def get_ready(self) -> None:
        """Have ready what a first prompt would wait for; a worker that is loaded at once does without."""
        if self._renderer is None:
            self._renderer = self._start_renderer()

    def bring_up(self, channel: "Channel[Prepared]", request: m.Load) -> "TextEngine | EmbeddingEngine":
        """As `loading.bring_up`."""
        self._start()
        if not request.embeddings:
            return self._bring_up_text(channel, request, self._renderer)
        if self._renderer is not None:
            self._renderer.end()
        # The inbox takes what the engine's own threads post, here other things.
        return self._bring_up_vectors(cast("Channel[TextsRead]", channel), request)


def _import_gently() -> "_Library | HypnosError":
    """On a thread of its own: no ordinary user may raise the priority of one again."""
    process.yield_to_others()
    return _import_library()


def _import_library() -> _Library | HypnosError:
    try:
        return _Library()
    except HypnosError as error:
        return error
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[-_REASON_CHARACTERS:]  # what numpy says fills a page, the cause its end
        return LoadFailed(f"The text engine's library is not usable ({reason}): run the set-up for text again.")


def _wait_for_load(channel: "Channel[Prepared]", library: _Library | HypnosError) -> m.Load | None:
    while True:
        match channel.inbox.get():
            case m.Load() as request:
                return request
            case m.Shutdown():
                return None
            case m.Ping() as ping:  # only a spare is asked
                if isinstance(library, _Library):
                    library.get_ready()
                channel.send(m.Pong(ping.nonce))
            case m.Generate() | m.Embed() as early:
                channel.send(m.Failed(early.id, "engine_failed", "No model is loaded."))
            case _:
                pass
