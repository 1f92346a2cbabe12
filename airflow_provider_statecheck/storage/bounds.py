"""
Bounds of what is decoded from the files of other jobs.

A driver decodes the state of its own job, however large it is. A server decodes that of any job, and compression lets a
file of a few kilobytes declare gigabytes. Within :func:`bounded_decoding`, declared sizes are therefore checked before
anything is decoded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from airflow_provider_statecheck.exceptions import CorruptStateError, RequestLimitError
from airflow_provider_statecheck.lazy import pa

LARGEST_DECODED: Final = 64 * 1024 * 1024
"""Largest size in bytes of one piece of state, such as a block, after its decompression."""
MOST_PROBLEMS: Final = 100
"""Problems of one stage of a checkpoint after which its other snapshots are not read."""
_READ_AT_ONCE: Final = 2
"""
How many times this size the pieces of one look-up may have together: 64 blocks of a mebibyte each, and their headers.
"""
_limit: ContextVar[int | None] = ContextVar("statecheck_decoding_limit", default=None)


@contextmanager
def bounded_decoding(limit: int = LARGEST_DECODED) -> Iterator[None]:
    """Bound what the block decodes."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def is_bounded() -> bool:
    """Return whether the caller decodes state of any job."""
    return _limit.get() is not None


def require_decodable(size: int, what: str) -> None:
    """
    Refuse a piece of state that is too large for a server, before it is read or decoded.

    :param size: Size in bytes, as declared by the writer.
    :raises RequestLimitError: if it is too large.
    """
    limit = _limit.get()
    if limit is not None and size > limit:
        raise _too_large(f"{what} of at most {limit} bytes", size)


def require_readable(sizes: Iterable[int], what: str) -> None:
    """
    Refuse pieces of a file that are too large for a server, one of them or all together, before any is read.

    :param sizes: Sizes in bytes, as declared by the writer.
    :raises RequestLimitError: if they are too large.
    """
    if (limit := _limit.get()) is None:
        return
    total = 0
    for size in sizes:
        require_decodable(size, what)
        total += size
    if total > _READ_AT_ONCE * limit:
        raise _too_large(f"{what} of at most {_READ_AT_ONCE * limit} bytes together", total)


def _too_large(expected: str, declared: int) -> RequestLimitError:
    return RequestLimitError(
        f"Expected {expected}, found {declared} declared; read it in a process of your own, with read_state or "
        "read_snapshot."
    )


def inflated(data: bytes, what: str, *, weight: int = 1) -> bytes:
    """
    Return what ``zlib`` has compressed.

    :param weight: Memory that a byte of the result takes when it is decoded.
    :raises RequestLimitError: if it is too large for this process.
    :raises zlib.error: if it is damaged.
    """
    limit = _limit.get()
    if limit is None:
        return zlib.decompress(data)
    inflating = zlib.decompressobj()
    found = inflating.decompress(data, limit // weight + 1)
    require_decodable(len(found) * weight, what)
    if not inflating.eof:
        raise zlib.error("incomplete data")
    return found


def decoded_batch(data: Any, schema: Any, what: str) -> Any:
    """
    Return the record batch in a message of Arrow, whose writer may be any job.

    :raises RequestLimitError: if it is too large for this process.
    :raises pa.ArrowException: if it is damaged; within :func:`bounded_decoding` also if its buffers do not fit its
        rows.
    """
    message = pa.ipc.read_message(pa.py_buffer(data))
    if not is_bounded():
        return pa.ipc.read_record_batch(message, schema)
    require_decodable(declared_bytes(message), what)
    batch = pa.ipc.read_record_batch(message, schema)
    # Rows beyond the buffers would be read from the memory of the server.
    batch.validate(full=True)
    return batch


def require_decodable_file(data: bytes, what: str) -> None:
    """
    Check the declared sizes of all messages in a file of Arrow.

    :raises RequestLimitError: if they are too large for this process.
    :raises pa.ArrowException: if it is no such file.
    """
    if is_bounded():
        # The messages of a file follow its magic bytes as in a stream; its footer is none.
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(memoryview(data)[_MAGIC_BYTES:]))
        require_decodable(sum(map(declared_bytes, messages)), what)


_MAGIC_BYTES = 8
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
"""Places of fields in the tables ``Message``, ``DictionaryBatch`` and ``RecordBatch`` of Arrow's format."""
_BUFFER_BYTES = 16


def declared_bytes(message: Any) -> int:
    """
    Return the size of the buffers of a message after decompression, as it declares them.

    :raises CorruptStateError: if the message is no valid one.
    """
    if message.type not in ("record batch", "dictionary"):
        return int(message.body.size if message.body is not None else 0)
    try:
        header = _table(memoryview(message.metadata), _uint(memoryview(message.metadata), 0), _HEADER)
        batch = header if message.type == "record batch" else _table(memoryview(message.metadata), header, _DATA)
        return sum(_sizes_of(memoryview(message.metadata), batch, memoryview(message.body)))
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptStateError(f"Expected a message of Arrow, found a damaged one: {error}.") from error


def _sizes_of(metadata: memoryview, batch: int, body: memoryview) -> Iterator[int]:
    is_compressed = bool(_offset(metadata, batch, _COMPRESSION))
    buffers = _table(metadata, batch, _BUFFERS)
    for number in range(_uint(metadata, buffers)):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + number * _BUFFER_BYTES)
        if length > 0 and is_compressed:
            (size,) = struct.unpack_from("<q", body, offset)
            yield length if size < 0 else size
        elif length > 0:
            yield length


def _uint(data: memoryview, at: int) -> int:
    (value,) = struct.unpack_from("<I", data, at)
    return int(value)


def _offset(data: memoryview, table: int, field: int) -> int:
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    at = 4 + 2 * field
    return int(struct.unpack_from("<H", data, table - back + at)[0]) if at < size else 0


def _table(data: memoryview, table: int, field: int) -> int:
    """Return the place of the table or vector that a field of a table refers to."""
    offset = _offset(data, table, field)
    if not offset:
        raise ValueError(f"no field {field}")
    return table + offset + _uint(data, table + offset)
