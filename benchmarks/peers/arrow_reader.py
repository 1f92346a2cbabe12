"""Peer of R2: pyarrow reads all state files and discards their content."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs

from benchmarks.answering import answer

FILES_AT_ONCE = 8


def read(*, files: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """
    Read all files completely and concurrently.

    :param files: Paths of the files.
    :param options: Options of the object store; empty for local files.
    """
    begin = time.perf_counter()
    filesystem = _s3(options) if options else pa.fs.LocalFileSystem()
    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        rows = sum(threads.map(partial(_rows_of, filesystem), files))
    return {"seconds": time.perf_counter() - begin, "rows": rows}


def _rows_of(filesystem: Any, file: str) -> int:
    with filesystem.open_input_file(file) as opened:
        batches = pa.ipc.open_file(opened.read_buffer())
        return sum(batches.get_batch(number).num_rows for number in range(batches.num_record_batches))


def _s3(options: dict[str, Any]) -> Any:
    scheme, _, endpoint = options["endpoint_url"].partition("://")
    return pa.fs.S3FileSystem(
        access_key=options["key"], secret_key=options["secret"], endpoint_override=endpoint, scheme=scheme
    )


if __name__ == "__main__":
    answer(read)
