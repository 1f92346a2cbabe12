"""Options of spark-submit as words and as a text."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.submit_options import application_in, command_with, text_with

NEW = Additions(mailbox="s3://m/4", package="s3://p/airflow_provider_statecheck-0.2.0-b.zip")
MAILBOX = "--conf spark.statecheck.mailbox=s3://m/4"
OLD = "s3://p/airflow_provider_statecheck-0.1.0-a.zip"


@pytest.mark.parametrize(
    ("words", "application"),
    [
        ("x.py --conf a", "x.py"),
        ("--verbose x.py", "x.py"),
        ("-v --supervise --load-spark-defaults x.py", "x.py"),
        ("--name=totals x.py", "x.py"),
        ("--name totals x.py", "x.py"),
        ("-c spark.a=b x.py", "x.py"),
        ("--an-option-of-tomorrow value x.py", "x.py"),
        ("--name totals", None),
        ("--name", None),
        ("", None),
    ],
)
def test_application_is_what_comes_after_the_options(words: str, application: str | None) -> None:
    assert application_in(words.split()) == application


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", f"--py-files {NEW.package} {MAILBOX}"),
        (None, f"--py-files {NEW.package} {MAILBOX}"),
        ("--py-files a.zip", f"--py-files a.zip,{NEW.package} {MAILBOX}"),
        ("--py-files=a.zip", f"--py-files a.zip,{NEW.package} {MAILBOX}"),
        ('--py-files "a.zip,b.py"', f"--py-files a.zip,b.py,{NEW.package} {MAILBOX}"),
        ("--py-files a.zip --py-files b.zip", f"--py-files a.zip --py-files b.zip,{NEW.package} {MAILBOX}"),
        (f"--py-files {OLD},a.zip", f"--py-files a.zip,{NEW.package} {MAILBOX}"),
        ("--conf spark.submit.pyFiles=a.zip", f"--conf spark.submit.pyFiles=a.zip,{NEW.package} {MAILBOX}"),
        (
            "--conf spark.submit.pyFiles=a.zip --py-files b.zip",
            f"--conf spark.submit.pyFiles=a.zip --py-files b.zip,{NEW.package} {MAILBOX}",
        ),
        (
            "--conf spark.statecheck.mailbox=s3://m/3 --conf=spark.statecheck.mailbox=s3://m/2 -c 'a=b  c'",
            f"-c 'a=b  c' --py-files {NEW.package} {MAILBOX}",
        ),
        (
            "--conf spark.x={{ var.value.x }}",
            f"--conf spark.x={{{{ var.value.x }}}} --py-files {NEW.package} {MAILBOX}",
        ),
        ("{{ options }} --py-files a.zip", f"{{{{ options }}}} --py-files a.zip,{NEW.package} {MAILBOX}"),
        ("--conf a='it", f"--conf a='it --py-files {NEW.package} {MAILBOX}"),
    ],
)
def test_text_gets_what_spark_would_read(text: str | None, expected: str) -> None:
    assert text_with(text, NEW) == expected


def test_uri_with_a_space_is_quoted_in_a_text_and_not_among_words() -> None:
    additions = Additions(mailbox="file:///a b/3")
    quoted = text_with("", additions)
    assert quoted == "--conf 'spark.statecheck.mailbox=file:///a b/3'"
    assert text_with(quoted, additions) == quoted
    assert command_with(["x.py"], additions, "x")[:2] == ["--conf", "spark.statecheck.mailbox=file:///a b/3"]


def test_inherited_files_come_first() -> None:
    assert text_with("", NEW, "a.zip,b.py").startswith(f"--py-files a.zip,b.py,{NEW.package} ")
    assert text_with("--py-files c.zip", NEW, "a.zip").startswith(f"--py-files c.zip,{NEW.package} ")
