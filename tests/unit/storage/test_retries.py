from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class _Time:
    """A clock that only sleeping moves."""

    def __init__(self, seconds_per_call: float = 0) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._seconds_per_call = seconds_per_call

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def policy(self, random: float = 0.5, **bounds: float) -> RetryPolicy:
        return RetryPolicy(sleep=self.sleep, monotonic=lambda: self.now, random=lambda: random, **bounds)  # type: ignore[arg-type]

    def failing(self, error: Exception, times: int):
        left = [error] * times

        def call() -> str:
            self.now += self._seconds_per_call
            if left:
                raise left.pop()
            return "done"

        return call


def test_what_passes_is_waited_out_longer_and_longer_with_jitter() -> None:
    time = _Time()
    assert time.policy().call(time.failing(ConnectionResetError(), 4), "x") == "done"
    assert time.pauses == [0.1, 0.2, 0.4, 0.8]


def test_no_pause_is_longer_than_its_bound() -> None:
    time = _Time()
    time.policy(random=1.0, attempts=9, longest_pause_seconds=1.0).call(time.failing(TimeoutError(), 8), "x")
    assert max(time.pauses) == 1.0


def test_after_the_last_attempt_the_error_itself_is_raised() -> None:
    time, error = _Time(), ConnectionResetError()
    with pytest.raises(ConnectionResetError) as caught:
        time.policy().call(time.failing(error, 5), "x")
    assert caught.value is error
    assert len(time.pauses) == 4


def test_no_attempt_begins_after_the_deadline() -> None:
    time = _Time(seconds_per_call=50)
    with pytest.raises(TimeoutError):
        time.policy(attempts=100, deadline_seconds=120).call(time.failing(TimeoutError(), 99), "x")
    assert len(time.pauses) == 2


@pytest.mark.parametrize(
    "error", [PermissionError("no"), FileNotFoundError("gone"), ValueError("odd"), OSError(28, "full")]
)
def test_what_does_not_pass_is_not_repeated(error: Exception) -> None:
    time = _Time()
    with pytest.raises(type(error)):
        time.policy().call(time.failing(error, 1), "x")
    assert time.pauses == []


def test_an_error_in_whose_handling_the_storage_is_called_is_none_of_its_own(tmp_path: Path) -> None:
    """A JVM that was killed breaks the driver's connection; a file that is missing then is missing, and no passing fault."""
    time = _Time()
    storage = CheckpointStorage(LocalFileSystem(), f"file://{tmp_path}", retries=time.policy())
    try:
        raise ConnectionRefusedError(111, "the JVM is dead")
    except ConnectionRefusedError:
        with pytest.raises(CheckpointNotFoundError):
            storage.read_bytes(f"file://{tmp_path}/chk-3/_metadata")
    assert time.pauses == []


def test_log_names_the_place_and_not_what_the_client_said(caplog: pytest.LogCaptureFixture) -> None:
    time = _Time()
    time.policy().call(time.failing(TimeoutError("https://x/?sig=secret"), 1), "s3://bucket/f")
    assert "Storage call on s3://bucket/f failed with TimeoutError; retrying" in caplog.text
    assert "secret" not in caplog.text
