"""Turns the desktop's loop 50,000 times, with timers and socket lines; prints how many references None gained.

A binding that gives back what it never took makes the count fall with every turn, until the process aborts.
"""

import asyncio
import os
import socket
import sys

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtWidgets import QApplication

from app.desktop.loop import WatchedLoop, run_to_the_end

TURNS = 50_000
SIDE_WORK = 50
"""Every so many turns there are a timer and a line over a socket as well."""


async def main() -> int:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    _, echo = await asyncio.open_connection(sock=theirs)
    echoing = asyncio.create_task(_echo(_, echo))
    before = sys.getrefcount(None)
    for turn in range(TURNS):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned
        if turn % SIDE_WORK == 0:
            await asyncio.sleep(0.0005)
            writer.write(b"a line\n")
            assert await reader.readline() == b"a line\n"
            await loop.run_in_executor(None, os.getpid)
    after = sys.getrefcount(None)
    for closing in (writer, echo):
        closing.close()
    echoing.cancel()
    await asyncio.gather(echoing, return_exceptions=True)
    return after - before


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)


if __name__ == "__main__":
    application = QApplication([])
    print(run_to_the_end(WatchedLoop(application), main()))
