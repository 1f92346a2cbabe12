"""
Work on the files of jobs in a process whose memory is bounded.

A page of a Parquet file may declare gigabytes in a few kilobytes, and a dictionary may repeat a long value in each row.
The reader of Parquet has no bound for either, so a server lets another process decode such files. What a hostile file
ends is that process, and the server replies that what it holds is too large.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from airflow_provider_statecheck.exceptions import RequestLimitError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.storage.large_files import about_to_hold

MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Memory that the process may use beyond that of its libraries."""


def run_bounded(work: Callable[..., bytes], *arguments: Any, seconds: float) -> bytes:
    """
    Return what a function returns in a process of its own.

    :param work: Function of a module. What it decodes comes from a job, so its result must be no pickle.
    :param seconds: Time after which the process is ended.
    :raises RequestLimitError: if the function takes too much memory or time, or others do for too long.
    """
    about_to_hold(MEMORY_BYTES)
    # The request comes from this process, unlike the bytes in it, which are not unpickled.
    request = pickle.dumps((work, arguments, MEMORY_BYTES))
    paths = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import {answer.__name__} as run; run()"]
    try:
        done = subprocess.run(  # noqa: S603 - no part of the command comes from a request
            command, input=request, stdout=subprocess.PIPE, env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _too_large(f"more than {seconds} seconds") from error
    if done.returncode:
        raise _too_large(f"more than {MEMORY_BYTES} bytes of memory")
    return done.stdout


def _too_large(found: str) -> RequestLimitError:
    return RequestLimitError(
        f"Expected rows that a server can decode, found that they take {found}; read them in a process of your own, "
        "with read_state or read_snapshot."
    )


def answer() -> None:
    """Answer the request on the standard input, as the process that :func:`run_bounded` starts."""
    work, arguments, memory = pickle.load(sys.stdin.buffer)  # noqa: S301 - the server wrote it
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _bound_memory(memory)
    try:
        reply = work(*arguments)
    except MemoryError:
        sys.exit(1)
    sys.stdout.buffer.write(reply)


def _bound_memory(more: int) -> None:
    import resource

    status = Path("/proc/self/status")
    if status.exists():  # Linux
        used = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        bound = int(used.split()[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
