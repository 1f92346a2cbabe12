"""
Finds out whether a local path is one and the same for everybody who writes there.

Three parties have to see it: this process, which writes ``_metadata``; the server or driver, which lists directories and
commits; and the executors, which write the data. A path that only looks the same would lose every snapshot.
"""

from __future__ import annotations

import logging
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_WITNESS = "written-by-the-task"
_ANSWERS = "written-by-spark"
# More tasks than most clusters have executors, so that each is likely to get one.
_WRITERS = 32
# How Java and Hadoop name trouble with files; an executor that is lost meanwhile says nothing about the path.
_FILE_TROUBLE = re.compile(
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFound|NoSuchFile|AccessControl|AccessDenied|Permission denied|Mkdirs failed"
    r"|Read-only file system|No such file"
)


def require_shared_path(spark: SparkSession, base_uri: str) -> None:
    """
    Let each party write where another one reads.

    :param spark: A session whose driver or executors may be elsewhere.
    :param base_uri: The checkpoint directory, a ``file://`` URI.
    :raises EnvironmentNotReadyError: saying who does not see it, and what to do.
    """
    base = Path(base_uri.partition("://")[2])
    with _probe_directory(base) as probe:
        word = uuid.uuid4().hex
        (probe / _WITNESS).write_text(word)
        _require_seen_by_spark(spark, probe, word, base_uri)
        _require_seen_here(spark, probe, base_uri)
    log.info("The task, the driver and the executors of Spark see one directory %s.", redact(base_uri))


@contextmanager
def _probe_directory(base: Path) -> Iterator[Path]:
    probe = base / f".probe-{uuid.uuid4().hex}"
    try:
        probe.mkdir(parents=True)
        # The server and the executors may run as another user, who writes here too.
        probe.chmod(0o777)
        yield probe
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise EnvironmentNotReadyError(
            f"Expected to write below {base}, found: {error}; give another checkpoint_dir or the right to write there."
        ) from error
    except OSError as error:
        raise StorageError(f"The checkpoint directory {base} could not be tried out: {error}") from error
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _require_seen_by_spark(spark: SparkSession, probe: Path, word: str, base_uri: str) -> None:
    with _file_trouble_means(base_uri, "Spark's driver does not see what the task writes"):
        frame = spark.read.text(f"file://{probe}/{_WITNESS}")
        frame.schema  # noqa: B018 - asks the driver to look
    with _file_trouble_means(base_uri, "an executor cannot read what the task writes"):
        lines = [row.value for row in frame.collect()]
    if lines != [word]:
        raise _not_shared(base_uri, "Spark reads something else than what the task wrote")


def _require_seen_here(spark: SparkSession, probe: Path, base_uri: str) -> None:
    answers = probe / _ANSWERS
    with _file_trouble_means(base_uri, "an executor cannot write there, or the driver does not see what it wrote"):
        spark.range(0, _WRITERS, 1, _WRITERS).write.parquet(f"file://{answers}")
    found = len(list(answers.glob("*.parquet")))
    if found != _WRITERS:
        raise _not_shared(base_uri, f"the task sees {found} of {_WRITERS} files that Spark wrote")
    try:
        shutil.rmtree(answers)
    except PermissionError as error:
        raise _not_shared(base_uri, "the task may not delete what Spark writes") from error


@contextmanager
def _file_trouble_means(base_uri: str, meaning: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not _FILE_TROUBLE.search(str(error)):
            raise
        raise _not_shared(base_uri, meaning) from error


def _not_shared(base_uri: str, found: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected {redact(base_uri)} to be one directory for the task and for Spark's driver and executors, found that "
        f"{found}; use a path on a shared volume that all of them mount and may write to, or an object store such as "
        f"s3://."
    )
