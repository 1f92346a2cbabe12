"""Lookup of Hadoop filesystems, and conversion of URIs to Spark's names for them."""

from __future__ import annotations

import logging
import re
from typing import Any
from weakref import WeakKeyDictionary

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.driver.session import is_connect
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

# With a single slash, because Hadoop writes file:/x.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
# Hadoop's name for s3 is s3a, except for distributions with their own s3 filesystem.
_OTHER_NAMES = {"s3": "s3a"}
_MISSING = re.compile(
    r"No FileSystem for scheme|UnsupportedFileSystemException|ClassNotFoundException|NoClassDefFoundError"
)


class HadoopFilesystems:
    """Hadoop filesystems of Spark sessions, looked up once for each session and scheme."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Any, dict[str, str | None]] = WeakKeyDictionary()

    def spark_uri(self, spark: Any, uri: str) -> str | None:
        """
        Return a URI for Spark's readers and writers, ``None`` if Spark's Hadoop has no filesystem for it.

        :param spark: The session.
        :param uri: An absolute URI.
        :raises InvalidConfigurationError: for a URI without a scheme.
        :raises UnsupportedStateError: for the memory filesystem, which is private to a process.
        """
        scheme = spark_scheme(uri)
        if scheme == "memory":
            raise UnsupportedStateError(
                f"Expected a storage that executors can access, found {redact(uri)} in the memory of this process; use "
                "file:// or a shared storage.",
                uri=redact(uri),
            )
        names = self._names.setdefault(spark, {})
        if scheme not in names:
            names[scheme] = _spark_name(spark, scheme)
        name = names[scheme]
        return None if name is None else f"{name}:{uri.partition(':')[2]}"


def spark_scheme(uri: str) -> str:
    """
    Return the scheme of a URI in lower case.

    :raises InvalidConfigurationError: if it has none.
    """
    found = _SCHEME.match(uri)
    if found is None:
        # Without a scheme, Spark would use its default filesystem, but fsspec the local disk.
        raise InvalidConfigurationError(
            f"Expected a checkpoint directory with a scheme, found {redact(uri)!r}; write file:///... for a local one.",
            uri=redact(uri),
        )
    return found.group(1).lower()


def same_place(uri: str) -> tuple[str, ...]:
    """Return the URIs by which a plan may refer to a location."""
    scheme, colon, rest = uri.partition(":")
    other = _OTHER_NAMES.get(scheme)
    return (uri,) if other is None else (uri, f"{other}{colon}{rest}")


def _spark_name(spark: Any, scheme: str) -> str | None:
    candidates = [scheme, *([_OTHER_NAMES[scheme]] if scheme in _OTHER_NAMES else [])]
    name = next((each for each in candidates if _has_filesystem(spark, each)), None)
    if name is None:
        log.info("Spark's Hadoop has no filesystem for %s://; executors write DataFrames to it through fsspec.", scheme)
    else:
        log.info("Spark writes DataFrames to %s:// through its Hadoop filesystem %s://.", scheme, name)
    return name


def _has_filesystem(spark: Any, scheme: str) -> bool:
    if is_connect(spark):
        return _server_has_filesystem(spark, scheme)
    from py4j.protocol import Py4JJavaError

    conf = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        spark._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError:
        # No class is configured for the scheme, or it is not on the class path.
        return False
    return True


def _server_has_filesystem(spark: Any, scheme: str) -> bool:
    # A client cannot query the server's classes, but its analyzer opens the filesystem of a path. Without a host or
    # bucket, filesystems of object stores fail before they use the network.
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.schema("a int").parquet(f"{scheme}:///statecheck-probe").schema
    except PySparkException as error:
        return _MISSING.search(str(error)) is None
    return True
