"""What the driver raises for the texts that Spark makes of errors."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import (
    A_RETRY_CANNOT_HELP,
    StorageError,
    UnfitOutputError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.job_failures import task_errors_raised
from airflow_provider_statecheck.spark.stage_costs import disk_failures_named

OWN = "airflow_provider_statecheck.exceptions"
TRACE = 'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "f.py", line 1, in f\n    g()\n    ^^^\n'


def raised_for(text):
    with pytest.raises(Exception) as raised, task_errors_raised():  # noqa: PT011 - each class is compared
        raise RuntimeError(text)
    return raised.value


@pytest.mark.parametrize(
    "after",
    [
        "",
        "\n",
        "\n\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat org.apache.spark.X.y(X.scala:1)",
        "\n\n\tat org.X(X.scala:1)\n",
    ],
    ids=["end", "line", "stacktrace", "frames"],
)
def test_the_error_that_ended_a_task_is_raised_with_its_whole_message(after):
    found = raised_for(f"{TRACE}{OWN}.UnfitOutputError: Expected a,\nfound b: 'ü'.{after}")
    assert type(found) is UnfitOutputError
    assert isinstance(found, A_RETRY_CANNOT_HELP)
    assert str(found) == "Expected a,\nfound b: 'ü'."
    assert isinstance(found.__cause__, RuntimeError)


def test_an_error_that_may_be_retried_stays_one():
    assert raised_for(f"{TRACE}{OWN}.StorageError: The storage failed.").retryable


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACE}ValueError: {OWN}.UnfitOutputError: Expected a.",
        f"{TRACE}{OWN}.UnfitOutputError: Expected a.\n\nDuring handling of it:\n\n{TRACE}ValueError: b",
        f"{TRACE}{OWN}.annotations: no class",
        f"{TRACE}{OWN}.NoSuchError: unknown",
        f"{OWN}.UnfitOutputError: in no traceback",
        "java.lang.IllegalStateException: other",
    ],
)
def test_an_error_of_another_class_stays_what_it_is(text):
    assert type(raised_for(text)) is RuntimeError


def test_an_error_of_this_package_passes():
    error = UnsupportedStateError("No space left on device")
    with pytest.raises(UnsupportedStateError) as raised, disk_failures_named("file:///c"), task_errors_raised():
        raise error
    assert raised.value is error


def caused_by(error, cause):
    error.__cause__ = cause
    return error


WRITING = "An error occurred while calling o100.parquet.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n\tat org.X"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device", "/c/x"), "[Errno 28] No space left on device: '/c/x'"),
        (
            RuntimeError(f"{WRITING}\nCaused by: java.io.IOException: Disk quota exceeded\n\tat x"),
            "Disk quota exceeded",
        ),
        (
            RuntimeError(f"{WRITING}\nCaused by: java.io.FileNotFoundException: /s/x (Read-only file system)"),
            "/s/x (Read-only file system)",
        ),
        (
            RuntimeError(
                "SparkException: Lost task 0.0 (TID 6) (h executor driver): java.io.IOException: Mkdirs failed to "
                "create file:/c/o"
            ),
            "Mkdirs failed to create file:/c/o",
        ),
        (
            caused_by(RuntimeError("Job aborted."), OSError(122, "Disk quota exceeded")),
            "[Errno 122] Disk quota exceeded",
        ),
    ],
    ids=["space", "quota", "read-only", "directory", "below another error"],
)
def test_a_disk_that_takes_nothing_is_named_with_the_error_of_the_system_and_without_the_trace_of_a_jvm(error, told):
    with pytest.raises(StorageError) as raised, disk_failures_named("file:///c"):
        raise error
    assert f"found: {told}, in file:///c or in Spark's local directories" in str(raised.value)
    assert "\tat " not in str(raised.value)
    assert raised.value.retryable
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_any_other_error_is_none_of_a_disk():
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as raised, disk_failures_named("file:///c"):
        raise error
    assert raised.value is error


def test_the_time_follows_the_length_of_the_text():
    """A message of a user may have any number of blank lines and of words that begin like a frame of the JVM."""
    for filling in ("\n", "\n \n", "at a.b", "\n\tat a", " at "):
        found = raised_for(f"{TRACE}{OWN}.UnfitOutputError: Expected a.{filling * 500_000}\nat org.X(X.scala:1)")
        assert str(found).startswith("Expected a.")
        assert "org.X" not in str(found)


def test_an_error_of_the_user_is_logged_with_its_place_and_without_the_frames_of_libraries(caplog):
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
  File "/x/airflow_provider_statecheck/spark/stages/executor/vertex_task.py", line 9, in process
    emitted = function(rows[position], context)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/ann/dags/balances.py", line 12, in process_element
    yield value.accnt
          ^^^^^^^^^^^^
AttributeError: Expected one of the columns account, amount, found 'accnt'; did you mean account?
In the function 'balance', for the key 'a3'

JVM stacktrace:
org.apache.spark.SparkException
\tat org.apache.spark.X.y(X.scala:1)"""
    assert type(raised_for(text)) is RuntimeError
    assert [record.getMessage() for record in caplog.records] == [
        "AttributeError: Expected one of the columns account, amount, found 'accnt'; did you mean account?",
        "In the function 'balance', for the key 'a3'",
        '  File "/home/ann/dags/balances.py", line 12, in process_element',
        "    yield value.accnt",
    ]
