"""Reads one token stream in a process of its own and prints the times between its tokens."""

import json
import socket
import subprocess
import sys
import time
from itertools import pairwise
from urllib.parse import urlsplit

from benchmarks.server.processes import ROOT, body


def gaps_s(address: str, tokens: int) -> list[float]:
    """Seconds between the arrivals of a stream's tokens, as a client in another process sees them."""
    command = [sys.executable, "-m", "benchmarks.desktop.streams", address, str(tokens)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(answer.stdout)
    return found


def read(address: str, tokens: int) -> list[float]:
    """The same, in this process: on a plain socket, so that the client costs next to nothing."""
    target = urlsplit(address)
    request = body(tokens, stream=True)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(request)}\r\n\r\n"
    )
    arrivals: list[float] = []
    seen = b""
    with socket.create_connection((str(target.hostname), int(target.port or 80))) as client:
        client.sendall(head.encode() + request)
        while b"data: [DONE]" not in seen:
            piece = client.recv(65536)
            if not piece:
                raise RuntimeError("the stream broke")
            arrivals += [time.perf_counter()] * piece.count(b"data: {")
            seen = seen[-64:] + piece
    return [after - before for before, after in pairwise(arrivals)]


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], int(sys.argv[2]))))
