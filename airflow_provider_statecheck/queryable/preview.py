"""
First rows of a snapshot, decoded in a process whose memory is bounded.

A page of a Parquet file may declare gigabytes in a few kilobytes, and a dictionary may repeat a long value in each row. The
reader of Parquet has no bound for either, so a server lets another process decode the files of jobs. What a hostile file ends
is that process, and the server replies that the rows are too large.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_statecheck.checkpoint.codec import to_json
from airflow_provider_statecheck.exceptions import RequestLimitError, StateCheckError
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.queryable.answers import JsonRows, first_rows
from airflow_provider_statecheck.storage.bounds import is_bounded

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.reading.snapshot_reader import SnapshotReader

_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Memory that the process may use beyond that of its libraries."""
_SECONDS: Final = 60
_AT_ONCE: Final = BoundedSemaphore(2)
_IN_MEMORY: Final = ("memory://", "memory:/")
"""Files that no other process has."""


def preview(reader: SnapshotReader, limit: int, max_bytes: int) -> JsonRows:
    """
    Return the first rows of a snapshot.

    :param limit: Largest number of rows.
    :param max_bytes: Largest size of the rows as JSON.
    :raises RequestLimitError: if the files take too much memory or time.
    :raises StateCheckError: as the methods of the reader.
    """
    if not is_bounded() or reader.storage.base_uri.startswith(_IN_MEMORY):
        return first_rows(reader.schema, reader.batches(limit + 1), limit, max_bytes)
    # The request comes from this process; the reply is JSON.
    reply = _reply_to(pickle.dumps((reader, limit, max_bytes, _MEMORY_BYTES)))
    if "error" in reply:
        raise decode_error(reply["error"])
    columns, rows = (tuple(map(tuple, reply[name])) for name in ("columns", "rows"))
    return JsonRows(columns=columns, rows=rows, has_more=reply["has_more"])


def _reply_to(request: bytes) -> dict[str, Any]:
    paths = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import {answer.__name__} as run; run()"]
    with _AT_ONCE:
        try:
            done = subprocess.run(  # noqa: S603 - no part of the command comes from a request
                command, input=request, stdout=subprocess.PIPE, env=environment, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise _too_large(f"more than {_SECONDS} seconds") from error
    if done.returncode:
        raise _too_large(f"more than {_MEMORY_BYTES} bytes of memory")
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def _too_large(found: str) -> RequestLimitError:
    return RequestLimitError(
        f"Expected rows that a server can decode, found that they take {found}; read them in a process of your own, with "
        f"read_snapshot."
    )


def answer() -> None:
    """Answer the request on the standard input, as the process that :func:`preview` starts."""
    reader, limit, max_bytes, memory = pickle.load(sys.stdin.buffer)  # noqa: S301 - the server wrote it
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _bound_memory(memory)
    sys.stdout.buffer.write(to_json(_answer_of(reader, limit, max_bytes)).encode("utf-8", "surrogatepass"))


def _answer_of(reader: SnapshotReader, limit: int, max_bytes: int) -> dict[str, Any]:
    try:
        found = first_rows(reader.schema, reader.batches(limit + 1), limit, max_bytes)
    except StateCheckError as error:
        return {"error": encode_error(error)}
    except MemoryError:
        sys.exit(1)
    return {"columns": found.columns, "rows": found.rows, "has_more": found.has_more}


def _bound_memory(more: int) -> None:
    import resource

    status = Path("/proc/self/status")
    if status.exists():  # Linux
        used = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        bound = int(used.split()[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
