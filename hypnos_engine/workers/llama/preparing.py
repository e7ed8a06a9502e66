"""Writes prompts on a thread of its own, so that a long text or a slow template never stalls the answers that run."""

import contextlib
import queue
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypnos_engine.domain.errors import EngineFailed, HypnosError
from hypnos_engine.workers.llama.job import Job
from hypnos_engine.workers.llama.prompt import PromptWriter
from hypnos_engine.workers.llama.runs import start_reading_thread

if TYPE_CHECKING:
    from hypnos_engine.workers.channel import Channel


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job's prompt as tokens, or why there is none."""

    job: Job
    tokens: list[int]
    error: HypnosError | None = None


class Preparation:
    """Takes jobs in the order of their arrival and posts each as Prepared to the channel's inbox."""

    def __init__(self, writer: PromptWriter, channel: "Channel[Prepared]") -> None:
        self._writer = writer
        self._channel = channel
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        start_reading_thread(self._work, "prompts")

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        with contextlib.suppress(HypnosError):  # the first prompt tries again, and has somebody to tell
            self._writer.start()
        while True:
            job = self._jobs.get()
            if not job.cancelled:
                self._channel.inbox.put(self._prepared(job))

    def _prepared(self, job: Job) -> Prepared:
        try:
            return Prepared(job, self._writer.tokens(job.request))
        except HypnosError as error:
            return Prepared(job, [], error)
        except Exception as error:
            traceback.print_exc()
            return Prepared(job, [], EngineFailed(f"The prompt could not be made: {type(error).__name__}: {error}"))
