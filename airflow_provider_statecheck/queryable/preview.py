"""First rows of a snapshot, which a server lets a process with bounded memory decode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_statecheck.checkpoint.codec import to_json
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error
from airflow_provider_statecheck.queryable.answers import JsonRows, first_rows
from airflow_provider_statecheck.state.bounded_process import run_bounded
from airflow_provider_statecheck.storage.bounds import is_bounded

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.reading.snapshot_reader import SnapshotReader

_SECONDS: Final = 60
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
    reply: dict[str, Any] = json.loads(run_bounded(_answer, reader, limit, max_bytes, seconds=_SECONDS))
    if "error" in reply:
        raise decode_error(reply["error"])
    columns, rows = (tuple(map(tuple, reply[name])) for name in ("columns", "rows"))
    return JsonRows(columns=columns, rows=rows, has_more=reply["has_more"])


def _answer(reader: SnapshotReader, limit: int, max_bytes: int) -> bytes:
    return to_json(_rows_or_error(reader, limit, max_bytes)).encode("utf-8", "surrogatepass")


def _rows_or_error(reader: SnapshotReader, limit: int, max_bytes: int) -> dict[str, Any]:
    try:
        found = first_rows(reader.schema, reader.batches(limit + 1), limit, max_bytes)
    except StateCheckError as error:
        return {"error": encode_error(error)}
    return {"columns": found.columns, "rows": found.rows, "has_more": found.has_more}
