"""Headers of CSV files, and the columns of a schema in them."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import SourceChangedError, StorageError
from airflow_provider_statecheck.spark.connectors.files.csv_headers import CsvHeaders, has_header, positions_in_header

NAMES = ("id", "amount", "fee")


def headers(**options: Any) -> CsvHeaders:
    """Return a reader of headers, in which Spark finds one that no file has."""
    spark = SimpleNamespace(schema=SimpleNamespace(names=["of", "spark"]))
    return CsvHeaders(options={"header": True, **options}, storage_options={}, read=lambda _: spark)  # type: ignore[arg-type,return-value]


def uri_of(folder: Path, content: bytes, name: str = "a.csv") -> str:
    (folder / name).write_bytes(content)
    return (folder / name).as_uri()


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"id,fee\n1,2\n", {}, ("id", "fee")),
        (b"\xef\xbb\xbfid,fee\r\n1,2\r\n", {}, ("id", "fee")),
        (b"\n\nid;fee\n", {"sep": ";"}, ("id", "fee")),
        (b"id|fee\n", {"Delimiter": "|", "encoding": "UTF-8"}, ("id", "fee")),
        (b'"a,b","c d",\n', {}, ("a,b", "c d", "")),
        ("Größe,日本\n".encode(), {}, ("Größe", "日本")),
    ],
)
def test_header_is_the_first_line_with_text(
    tmp_path: Path, content: bytes, options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    uri = uri_of(tmp_path, content)
    assert headers(**options).of([uri]) == {expected: [uri]}


@pytest.mark.parametrize(
    ("content", "options", "name"),
    [
        (b'"a""b",c\n', {}, "a.csv"),
        (b"a\\,b,c\n", {}, "a.csv"),
        (b"# a\nb,c\n", {"comment": "#"}, "a.csv"),
        (b"b||c\n", {"sep": "||"}, "a.csv"),
        (b"b,c\n", {"encoding": "UTF-16"}, "a.csv"),
        (b"b,c\n", {"multiLine": True}, "a.csv"),
        (b"b,c\n", {}, "a.csv.zst"),
        (b"b,c\r1,2\r", {}, "a.csv"),
        ("größe,c\n1,2\n".encode("latin-1"), {}, "a.csv"),
        (b"a" * 200_000 + b"\n", {}, "a.csv"),
    ],
)
def test_header_that_needs_more_than_plain_csv_is_that_of_spark(
    tmp_path: Path, content: bytes, options: dict[str, Any], name: str
) -> None:
    uri = uri_of(tmp_path, content, name)
    assert headers(**options).of([uri]) == {("of", "spark"): [uri]}


def test_files_are_grouped_by_their_headers_also_if_they_are_compressed(tmp_path: Path) -> None:
    first = uri_of(tmp_path, b"id,fee\n")
    zipped = uri_of(tmp_path, gzip.compress(b"id,fee\n"), "b.csv.gz")
    other = uri_of(tmp_path, bz2.compress(b"fee,id\n"), "c.csv.bz2")
    assert headers().of([first, zipped, other]) == {("id", "fee"): [first, zipped], ("fee", "id"): [other]}


def test_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"header of .*gone\.csv"):
        headers().of([(tmp_path / "gone.csv").as_uri()])


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (NAMES, (0, 1, 2)),
        (("fee", "id", "amount"), (1, 2, 0)),
        (("id", "currency", "AMOUNT", "fee"), (0, 2, 3)),
        (("fee", "id"), (1, None, 0)),
    ],
)
def test_columns_are_found_by_name_and_a_missing_one_is_null(
    header: tuple[str, ...], expected: tuple[int | None, ...]
) -> None:
    assert positions_in_header(header, NAMES, "a.csv", is_case_sensitive=False) == expected


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (("id", "total", "fee"), r"\['total'\] instead of \['amount'\]"),
        (("id", "amount", "Amount", "fee"), r"\['amount'\] more than once"),
        (("1", "100", "1"), "instead of"),
    ],
)
def test_header_with_other_columns_is_refused_by_name(header: tuple[str, ...], told: str) -> None:
    with pytest.raises(SourceChangedError, match=rf"header of a\.csv.*{told}"):
        positions_in_header(header, NAMES, "a.csv", is_case_sensitive=False)


def test_case_counts_if_spark_distinguishes_it() -> None:
    twins = ("a", "A")
    assert positions_in_header(("A", "a"), twins, "a.csv", is_case_sensitive=True) == (1, 0)
    with pytest.raises(SourceChangedError):
        positions_in_header(("A", "b"), ("a",), "a.csv", is_case_sensitive=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"Header": "TRUE"}, True), ({"header": True}, True), ({"header": "false"}, False), ({}, False)],
)
def test_option_of_a_header_is_that_of_spark(options: dict[str, Any], expected: bool) -> None:
    assert has_header(options) is expected
