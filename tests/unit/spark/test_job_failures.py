"""What the driver raises for the texts that Spark makes of errors."""

from __future__ import annotations

import traceback

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
TRACE = (
    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    '  File "f.py", line 1, in f\n    g()\n    ^^^\n'
)

BARE_TRACE = TRACE.partition(":\n")[2]
WHILE = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
FROM = "\n\nThe above exception was the direct cause of the following exception:\n\n"


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
        f"{TRACE}{OWN}.UnfitOutputError: Expected a.{WHILE}{BARE_TRACE}ValueError: b",
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


WRITING = (
    "An error occurred while calling o100.parquet.\n"
    ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n\tat org.X"
)


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
  File "/x/site-packages/pyspark/worker.py", line 1, in main
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


def trace(*frames, error):
    lines = (f'  File "{path}", line 1, in f\n    {code}\n    ^^^\n' for path, code in frames)
    return f"Traceback (most recent call last):\n{''.join(lines)}{error}"


WORKER = ("/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", "process()")
MINE = ("/home/ann/pyspark/jobs/f.py", "g()")


def logged_for(text, caplog):
    caplog.clear()
    raised_for(text)
    return [record.getMessage() for record in caplog.records]


def test_the_causes_of_an_error_are_logged_below_it_once(caplog):
    causes = FROM.join([trace(MINE, error="KeyError: 'a'"), trace(error="ValueError: b")])
    chain = WHILE.join([causes, trace(WORKER, MINE, error="TypeError: c")])
    frame = ['  File "/home/ann/pyspark/jobs/f.py", line 1, in f', "    g()"]
    expected = ["TypeError: c", *frame, "While handling: ValueError: b", "Caused by: KeyError: 'a'", *frame]
    assert logged_for(chain, caplog) == expected
    repeated = f"{chain}\n\n\tat org.X(X.scala:1)\nCaused by: PythonException: {chain}\n\tat org.X(X.scala:1)"
    assert logged_for(repeated, caplog) == expected


def test_a_traceback_in_the_message_of_an_error_is_part_of_the_message(caplog):
    message = f"RuntimeError: the program failed:\n{trace(('x.py', 'y()'), error='OSError: inner')}"
    lines = logged_for(trace(WORKER, MINE, error=message), caplog)
    assert lines[:3] == [
        "RuntimeError: the program failed:",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
    ]
    assert lines[-3:] == ["OSError: inner", '  File "/home/ann/pyspark/jobs/f.py", line 1, in f', "    g()"]


def test_a_group_of_errors_is_logged_with_all_of_them(caplog):
    try:
        raise ExceptionGroup("two", [ValueError("x"), TypeError("y")])
    except ExceptionGroup:
        text = traceback.format_exc().replace(__file__, "/home/ann/f.py")
    lines = logged_for(f"PythonException: \n{text}\n\tat org.X(X.scala:1)", caplog)
    told = "\n".join(lines)
    assert all(
        part in told
        for part in ("/home/ann/f.py", "ExceptionGroup: two (2 sub-exceptions)", "ValueError: x", "TypeError: y")
    )
    assert "org.X" not in told


def test_the_error_at_the_end_of_a_chain_decides_and_its_cause_does_not():
    own = f"{OWN}.UnfitOutputError: Expected a."
    assert type(raised_for(FROM.join([trace(error="KeyError: 'a'"), trace(error=own)]))) is UnfitOutputError
    assert type(raised_for(FROM.join([trace(error=own), trace(error="KeyError: 'a'")]))) is RuntimeError


def test_a_long_error_is_cut(caplog):
    lines = logged_for(trace(MINE, error="ValueError: " + "a\n" * 5000 + "b"), caplog)
    assert (len(lines), lines[-1]) == (51, "… 4,953 more lines")
