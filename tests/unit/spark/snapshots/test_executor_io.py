from __future__ import annotations

import pickle

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.spark.snapshots import executor_io
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles, HiddenOptions
from airflow_provider_statecheck.spark.tables.data_files import scratch_directory
from airflow_provider_statecheck.storage.failures import RetryPolicy


@pytest.fixture
def files(tmp_path):
    (tmp_path / "data").mkdir()
    return ExecutorFiles(f"file://{tmp_path}/data", HiddenOptions({}))


def test_options_are_never_shown_and_survive_pickling():
    files = ExecutorFiles("memory://bucket/data", HiddenOptions({"key": "planted", "secret": "planted"}))
    assert "planted" not in f"{files!r} {files} {files.options!r} {files.options}"
    assert pickle.loads(pickle.dumps(files)).options.reveal() == {"key": "planted", "secret": "planted"}


def test_a_published_file_is_read_back(files, tmp_path):
    local = tmp_path / "local"
    local.write_bytes(b"12345")
    files.publish(local, "part-0.parquet")
    with files.open("part-0.parquet", 5) as file:
        assert file.read() == b"12345"


@pytest.mark.parametrize("size", [4, 6])
def test_a_file_of_another_size_is_refused(files, tmp_path, size):
    (tmp_path / "data" / "part-0.parquet").write_bytes(b"12345")
    with pytest.raises(CorruptStateError, match=rf"Expected {size} bytes in file:///.*part-0.parquet, found 5"):
        files.open("part-0.parquet", size)


def test_a_missing_file_is_told(files):
    with pytest.raises(CorruptStateError, match="found none"):
        files.open("part-0.parquet", 5)


def test_a_missing_package_is_told_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    local = tmp_path / "local"
    local.write_bytes(b"")
    with pytest.raises(InvalidConfigurationError, match=r"airflow-provider-statecheck\[gcs\]"):
        ExecutorFiles("gs://bucket/data", HiddenOptions({})).publish(local, "part-0.parquet")


def test_an_upload_keeps_few_parts_in_memory(tmp_path):
    from fsspec.implementations.local import LocalFileSystem

    asked = []

    class Parts(LocalFileSystem):  # type: ignore[misc]
        protocol = "parts"

        def _put_file(self, lpath, rpath, max_concurrency=None):
            raise NotImplementedError

        def put_file(self, lpath, rpath, **kwargs):
            asked.append(kwargs)

    class PartFiles(ExecutorFiles):
        def _filesystem(self):
            return Parts()

    PartFiles("parts://data", HiddenOptions({})).publish(tmp_path, "part-0.parquet")
    assert asked == [{"max_concurrency": 2}]


def test_scratch_files_are_where_spark_keeps_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    with scratch_directory() as folder:
        assert folder.startswith(f"{tmp_path}/")
    assert not list(tmp_path.iterdir())


def test_a_scratch_directory_that_does_not_exist_is_no_reason_to_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/gone")
    with scratch_directory() as folder:
        assert not folder.startswith(str(tmp_path / "gone"))


def test_what_a_client_says_is_shown_without_credentials(tmp_path):
    from fsspec.implementations.local import LocalFileSystem

    class Talkative(LocalFileSystem):  # type: ignore[misc]
        def put_file(self, lpath, rpath, **kwargs):
            raise PermissionError("access denied for planted-secret")

    class TalkativeFiles(ExecutorFiles):
        def _filesystem(self):
            return Talkative()

    files = TalkativeFiles("file:///data", HiddenOptions({"secret": "planted-secret"}))
    with pytest.raises(StorageError, match="PermissionError access denied") as raised:
        files.publish(tmp_path, "part-0.parquet")
    assert "planted" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_an_upload_that_fails_for_a_moment_is_sent_again(files, tmp_path, monkeypatch):
    from fsspec.implementations.local import LocalFileSystem

    failures = [ConnectionResetError("reset"), ConnectionResetError("reset")]
    put = LocalFileSystem.put_file

    def sometimes(self, lpath, rpath, **kwargs):
        if failures:
            raise failures.pop()
        put(self, lpath, rpath, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "put_file", sometimes)
    monkeypatch.setattr(executor_io, "RetryPolicy", lambda: RetryPolicy(sleep=lambda seconds: None))
    local = tmp_path / "local"
    local.write_bytes(b"12345")
    files.publish(local, "part-0.parquet")
    assert (tmp_path / "data" / "part-0.parquet").read_bytes() == b"12345"
    assert not failures
