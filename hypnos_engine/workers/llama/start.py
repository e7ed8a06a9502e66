"""Brings the text worker up: waits for Load, loads with progress, checks that the model computes, then serves.

Imports the library only when asked to run, so that the greeting comes at once and a missing library is a typed failure.
"""

from typing import TYPE_CHECKING, cast

from hypnos_engine.domain.errors import Cancelled, HypnosError, LoadFailed
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.channel import Channel
from hypnos_engine.workers.llama import binding

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypnos_engine.workers.llama.embedding import EmbeddingEngine
    from hypnos_engine.workers.llama.embedding_texts import TextsRead
    from hypnos_engine.workers.llama.engine import TextEngine
    from hypnos_engine.workers.llama.preparing import Prepared

    BringUp = Callable[[Channel[Prepared], m.Load], TextEngine | EmbeddingEngine]

_REASON_CHARACTERS = 300


def open_channel(read_fd: int, write_fd: int) -> "Channel[Prepared]":
    """The channel of a text worker; the inbox also takes prepared prompts."""
    return Channel(read_fd, write_fd)


def run(channel: "Channel[Prepared]") -> int:
    """Serve one model until Shutdown; return the exit status."""
    bring_up = _import_library()  # here and not on Load: a spare worker has its library ready before anybody asks
    request = _wait_for_load(channel)
    if request is None:
        return 0
    try:
        if isinstance(bring_up, HypnosError):
            raise bring_up
        engine = bring_up(channel, request)
    except Cancelled:
        return 0
    except HypnosError as error:
        channel.send(m.LoadFailed(error.code, error.message))
        return 0
    return engine.run()


def _import_library() -> "BringUp | HypnosError":
    try:
        binding.prepare()
        from hypnos_engine.workers.llama import embedding_loading, loading, native

        native.start()
    except HypnosError as error:
        return error
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[-_REASON_CHARACTERS:]  # what numpy says fills a page, the cause its end
        return LoadFailed(f"The text engine's library is not usable ({reason}): run the set-up for text again.")

    def bring_up(channel: "Channel[Prepared]", request: m.Load) -> "TextEngine | EmbeddingEngine":
        if request.embeddings:  # the inbox takes what the engine's own threads post, here other things
            return embedding_loading.bring_up(cast("Channel[TextsRead]", channel), request)
        return loading.bring_up(channel, request)

    return bring_up


def _wait_for_load(channel: "Channel[Prepared]") -> m.Load | None:
    while True:
        match channel.inbox.get():
            case m.Load() as request:
                return request
            case m.Shutdown():
                return None
            case m.Ping() as ping:
                channel.send(m.Pong(ping.nonce))
            case m.Generate() | m.Embed() as early:
                channel.send(m.Failed(early.id, "engine_failed", "No model is loaded."))
            case _:
                pass
