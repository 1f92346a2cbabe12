"""
A network namespace with the loopback device only, and single ports that are forwarded through its border.

::

    with isolated_network() as network:
        network.let_out(store_port)
        subprocess.run(network.command("curl", f"http://127.0.0.1:{store_port}"))

A Unix socket is a file and belongs to no network. A port is forwarded by two processes that meet at such a file, one
on each side of the border, so that the namespace needs no second device.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
CAN_ISOLATE = os.geteuid() == 0 and all(map(shutil.which, ("unshare", "nsenter", "ip")))
WHY_NOT = "network namespaces need root, unshare, nsenter and ip"

_ROOT = Path(__file__).parents[1]
_HOLDER = ("unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec cat")


@dataclass(frozen=True, slots=True)
class IsolatedNetwork:
    """A namespace that exists until its block ends."""

    holder: int
    """Id of the process that keeps the namespace."""
    _folder: Path
    _processes: ExitStack

    def command(self, *arguments: str) -> list[str]:
        """Return a command that runs another one in the namespace, as the same process."""
        return ["nsenter", f"--net=/proc/{self.holder}/ns/net", *arguments]

    def let_out(self, port: int) -> None:
        """Let processes of the namespace connect to a port outside, by the same number."""
        meeting = str(self._folder / f"out-{port}")
        self._run(_forwarder(meeting, str(port)))
        self._run(self.command(*_forwarder(str(port), meeting)))

    def let_in(self, port: int) -> None:
        """Let processes outside connect to a port of the namespace, by the same number."""
        meeting = str(self._folder / f"in-{port}")
        self._run(self.command(*_forwarder(meeting, str(port))))
        self._run(_forwarder(str(port), meeting))

    def _run(self, command: list[str]) -> None:
        self._processes.enter_context(_running(command))


@contextmanager
def isolated_network() -> Iterator[IsolatedNetwork]:
    """Make a namespace."""
    with tempfile.TemporaryDirectory(prefix="statecheck-net-") as folder, ExitStack() as processes:
        holder = processes.enter_context(_running(_HOLDER))
        yield IsolatedNetwork(holder, Path(folder), processes)


@contextmanager
def _running(command: tuple[str, ...] | list[str]) -> Iterator[int]:
    """Run a process that says when it is ready, and ends with its standard input, whatever becomes of this process."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), f"{command} did not start"
            yield process.pid
        finally:
            process.kill()


def _forwarder(listening: str, target: str) -> list[str]:
    return [sys.executable, "-m", "tests.isolated_network", listening, target]


async def _forward(listening: str, target: str) -> None:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_port = target.isdecimal()
        with closing(writer), suppress(ConnectionError):
            there = await (asyncio.open_connection(HOST, target) if is_port else asyncio.open_unix_connection(target))
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    if listening.isdecimal():
        await asyncio.start_server(join, HOST, int(listening))
    else:
        await asyncio.start_unix_server(join, listening)
    os.write(1, b"ready\n")
    await asyncio.to_thread(sys.stdin.read)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(_forward(*sys.argv[1:]))
