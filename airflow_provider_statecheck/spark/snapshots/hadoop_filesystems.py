"""Which filesystems a session's Hadoop has, and under which name Spark knows a place that a user named."""

from __future__ import annotations

import logging
import re
from typing import Any
from weakref import WeakKeyDictionary

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.driver.session import is_connect
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

# One slash is enough, because Hadoop writes file:/x.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
# What fsspec and most people call s3 is s3a to Hadoop, unless a distribution has a filesystem of its own.
_OTHER_NAMES = {"s3": "s3a"}
_MISSING = re.compile(
    r"No FileSystem for scheme|UnsupportedFileSystemException|ClassNotFoundException|NoClassDefFoundError"
)


class HadoopFilesystems:
    """Answers for each session and scheme once."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Any, dict[str, str | None]] = WeakKeyDictionary()

    def spark_uri(self, spark: Any, uri: str) -> str | None:
        """
        Return a place as Spark's own readers and writers take it, ``None`` where they do not reach it.

        :param spark: The session.
        :param uri: Any absolute URI.
        :raises InvalidConfigurationError: for a place without a scheme.
        :raises UnsupportedStateError: for one whose bytes no other process would see.
        """
        scheme = spark_scheme(uri)
        if scheme == "memory":
            raise UnsupportedStateError(
                f"Expected a storage that executors reach, found {redact(uri)}, whose bytes are in this process only; "
                "use file:// or a shared storage",
                uri=redact(uri),
            )
        names = self._names.setdefault(spark, {})
        if scheme not in names:
            names[scheme] = _spark_name(spark, scheme)
        name = names[scheme]
        return None if name is None else f"{name}:{uri.partition(':')[2]}"


def spark_scheme(uri: str) -> str:
    """
    Return the scheme of a place that Spark is to read or write.

    :raises InvalidConfigurationError: if there is none.
    """
    found = _SCHEME.match(uri)
    if found is None:
        # Without a scheme Spark would take its default filesystem, and everything else the local disk.
        raise InvalidConfigurationError(
            f"A checkpoint directory with a scheme was expected, found {redact(uri)!r}; write file:///... for a local one",
            uri=redact(uri),
        )
    return found.group(1).lower()


def same_place(uri: str) -> tuple[str, ...]:
    """Return the URIs under which a place may stand in the plan of a DataFrame that reads it."""
    scheme, colon, rest = uri.partition(":")
    other = _OTHER_NAMES.get(scheme)
    return (uri,) if other is None else (uri, f"{other}{colon}{rest}")


def _spark_name(spark: Any, scheme: str) -> str | None:
    candidates = [scheme, *([_OTHER_NAMES[scheme]] if scheme in _OTHER_NAMES else [])]
    name = next((each for each in candidates if _has_filesystem(spark, each)), None)
    if name is None:
        log.info(
            "Spark's Hadoop has no filesystem for %s://; DataFrames go there through fsspec on the executors.", scheme
        )
    else:
        log.info("DataFrames go to %s:// through Spark's own writer, as %s://.", scheme, name)
    return name


def _has_filesystem(spark: Any, scheme: str) -> bool:
    if is_connect(spark):
        return _server_has_filesystem(spark, scheme)
    from py4j.protocol import Py4JJavaError

    conf = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        spark._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError:
        # Either no class is configured for the scheme, or the configured one is not on the class path.
        return False
    return True


def _server_has_filesystem(spark: Any, scheme: str) -> bool:
    # The server's classes cannot be asked, but its analyzer opens the filesystem of a path. Without a host or bucket
    # the filesystems of object stores give up before they use the network.
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.schema("a int").parquet(f"{scheme}:///statecheck-probe").schema
    except PySparkException as error:
        return _MISSING.search(str(error)) is None
    return True
