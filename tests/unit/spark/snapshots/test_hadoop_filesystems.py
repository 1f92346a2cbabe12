"""The filesystems of Spark's Hadoop, by which Spark or Python writes a snapshot."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.dataframes import HadoopFilesystems, same_place


class Server:
    """A session of Spark Connect whose server has some filesystems, and answers as such a server does."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, *schemes: str, missing: str = 'No FileSystem for scheme "{}"') -> None:
        self._schemes = schemes
        self._missing = missing
        self.asked: list[str] = []

    @property
    def read(self):
        return self

    def schema(self, text):
        return self

    def parquet(self, uri):
        from pyspark.errors import PySparkException

        self.asked.append(uri)
        scheme = uri.partition(":")[0]
        message = "[PATH_NOT_FOUND] Path does not exist" if scheme in self._schemes else self._missing.format(scheme)
        raise PySparkException(message)


@pytest.mark.parametrize(
    ("schemes", "uri", "expected"),
    [
        (["hdfs"], "hdfs://host/data", "hdfs://host/data"),
        (["s3a"], "s3://bucket/a:b/data", "s3a://bucket/a:b/data"),
        (["s3", "s3a"], "s3://bucket/data", "s3://bucket/data"),
        (["s3a"], "s3a://bucket/data", "s3a://bucket/data"),
    ],
)
def test_a_filesystem_of_the_server_is_used_under_its_own_name_or_the_other_one(schemes, uri, expected):
    assert HadoopFilesystems().spark_uri(Server(*schemes), uri) == expected


@pytest.mark.parametrize(
    "missing",
    [
        'No FileSystem for scheme "{}"',
        "java.lang.ClassNotFoundException: Class {}",
        "java.lang.NoClassDefFoundError: {}",
    ],
)
def test_a_missing_filesystem_is_told_apart_from_a_missing_path(missing):
    assert HadoopFilesystems().spark_uri(Server(missing=missing), "gs://bucket/data") is None


def test_a_session_is_asked_once_and_tells_it_once(caplog):
    server, filesystems = Server(), HadoopFilesystems()
    with caplog.at_level(logging.INFO):
        for name in ("a", "b", "c"):
            assert filesystems.spark_uri(server, f"s3://bucket/{name}") is None
    assert len(server.asked) == 2
    assert len(caplog.records) == 1


def test_the_question_names_no_bucket_so_that_no_network_is_used():
    server = Server()
    HadoopFilesystems().spark_uri(server, "s3a://secret-bucket/data")
    assert server.asked == ["s3a:///statecheck-probe"]


def test_bytes_in_this_process_are_refused():
    with pytest.raises(UnsupportedStateError, match="in the memory of this process"):
        HadoopFilesystems().spark_uri(Server("memory"), "memory://bucket/data")


def test_a_place_without_a_scheme_is_refused():
    with pytest.raises(InvalidConfigurationError, match="scheme"):
        HadoopFilesystems().spark_uri(Server(), "/data")


def test_a_place_is_known_under_both_names():
    assert same_place("s3://bucket/x") == ("s3://bucket/x", "s3a://bucket/x")
    assert same_place("file:///x") == ("file:///x",)
