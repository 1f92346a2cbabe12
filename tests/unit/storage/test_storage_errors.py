from __future__ import annotations

from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.exceptions import (
    StorageError,
)
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class _Down(MemoryFileSystem):  # type: ignore[misc]
    """A storage that does not answer; its errors are of the client's own kind and carry a secret."""

    cachable = False

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self._error

    info = cat_file = open = pipe_file = find = ls = rm = rm_file = _fail


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            OSError("memory://key:secret@down is gone"),
            PermissionError("memory://key:secret@down"),
            TimeoutError("memory://key:secret@down"),
            RuntimeError("memory://key:secret@down, from a client that has its own errors"),
        ],
        ids=lambda e: type(e).__name__,
    )
    @pytest.mark.parametrize(
        "call",
        [
            lambda s, u: s.write_bytes(u, b"x"),
            lambda s, u: s.write_bytes(u, b"x", overwrite=True),
            lambda s, u: s.read_bytes(u),
            lambda s, u: s.read_range(u, 0, 1),
            lambda s, u: s.read_verified(u, size=1, sha256=""),
            lambda s, u: s.exists(u),
            lambda s, u: s.is_directory(u),
            lambda s, u: s.size(u),
            lambda s, u: s.list_files(u),
            lambda s, u: s.list_directories(u),
            lambda s, u: s.delete_file(u),
            lambda s, u: s.delete_directory(u),
        ],
        ids=[
            "write",
            "overwrite",
            "read",
            "range",
            "verified",
            "exists",
            "isdir",
            "size",
            "files",
            "dirs",
            "rm",
            "rmdir",
        ],
    )
    def test_storage_that_does_not_answer_is_a_storage_error_without_a_secret_in_it_or_its_cause(
        self, call: Any, error: Exception
    ) -> None:
        storage = CheckpointStorage(_Down(error), "memory://key:secret@down", retries=RetryPolicy(attempts=1))
        uri = f"memory://key:secret@down/{'a' * 32}/chk-1/f"
        with pytest.raises(StorageError) as caught:
            call(storage, uri)
        assert type(caught.value) is StorageError
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        assert "secret" not in str(caught.value)
        assert caught.value.uri == f"memory://***@down/{'a' * 32}/chk-1/f"
        assert "chk-1/f" in str(caught.value)

    def test_cause_without_a_secret_is_kept(self) -> None:
        error = OSError("the disk is gone")
        storage = CheckpointStorage(_Down(error), "memory://down", retries=RetryPolicy(attempts=1))
        with pytest.raises(StorageError) as caught:
            storage.exists("memory://down/f")
        assert caught.value.__cause__ is error
