"""Which Parquet files are cut, and what is told of the others."""

from __future__ import annotations

import base64
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyspark.sql import types as t

from airflow_provider_statecheck.spark.connectors.row_groups import read_footer
from airflow_provider_statecheck.spark.tables.cutting import ReadingRules, obstacle
from tests.unit.spark.connectors.test_item_source import rows, task

RULES = ReadingRules()
SENSITIVE = ReadingRules(is_case_sensitive=True)


@pytest.fixture
def write(tmp_path):
    def write(table, **named):
        path = tmp_path / "file.parquet"
        pq.write_table(table, path, **named)
        return path

    return write


def footer_of(path):
    return read_footer(f"file://{path}", f"file://{path.parent}", path.stat().st_size, {})


def is_cut(metadata, schema, rules=RULES):
    return obstacle(metadata, schema, rules) is None


PLAIN = {
    "a": (pa.int64(), t.LongType()),
    "b": (pa.int16(), t.IntegerType()),
    "c": (pa.uint32(), t.LongType()),
    "d": (pa.timestamp("us", "UTC"), t.TimestampType()),
    "e": (pa.timestamp("ms"), t.TimestampNTZType()),
    "f": (pa.decimal128(10, 2), t.DecimalType(10, 2)),
    "g": (pa.list_(pa.field("item", pa.int32(), nullable=False)), t.ArrayType(t.LongType())),
    "h": (
        pa.map_(pa.string(), pa.struct({"x": pa.int64()})),
        t.MapType(t.StringType(), t.StructType().add("x", "long")),
    ),
    "i": (pa.large_string(), t.StringType()),
    "j": (pa.binary(), t.BinaryType()),
}
OTHER = {
    "narrower": (pa.int64(), t.IntegerType()),
    "unsigned": (pa.uint64(), t.LongType()),
    "another kind": (pa.int64(), t.StringType()),
    "bytes as text": (pa.binary(), t.StringType()),
    "without a zone": (pa.timestamp("us"), t.TimestampType()),
    "with a zone": (pa.timestamp("us", "UTC"), t.TimestampNTZType()),
    "nanoseconds": (pa.timestamp("ns", "UTC"), t.TimestampType()),
    "wider decimal": (pa.decimal128(10, 2), t.DecimalType(12, 2)),
    "other fields": (pa.struct({"x": pa.int64()}), t.StructType().add("x", "long").add("y", "long")),
    "in a list": (pa.list_(pa.int64()), t.ArrayType(t.StringType())),
    "collation": (pa.string(), t.StringType("UTF8_LCASE")),
    "limited text": (pa.string(), t.VarcharType(5)),
    "interval": (pa.int32(), t.YearMonthIntervalType()),
}


def metadata_of(write, arrow_type, name="column", **named):
    return pq.read_metadata(write(pa.table({name: pa.array([], arrow_type)}), **named))


@pytest.mark.parametrize(("stored", "wanted"), PLAIN.values())
def test_types_that_both_readers_know_alike_may_be_cut(write, stored, wanted):
    assert is_cut(metadata_of(write, stored), t.StructType().add("column", wanted))


@pytest.mark.parametrize(("stored", "wanted"), OTHER.values(), ids=OTHER.keys())
def test_types_that_only_spark_reads_as_it_should_are_not_cut(write, stored, wanted):
    assert not is_cut(metadata_of(write, stored), t.StructType().add("column", wanted))


@pytest.mark.parametrize("year", [1500, 2026, 3000])
def test_times_of_old_files_are_those_of_spark(write, year):
    """Years that do not fit into 64 bits of nanoseconds too."""
    moment = datetime(year, 11, 21, 3, 4, 5, 678901)  # noqa: DTZ001
    path = write(pa.table({"at": pa.array([moment], pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)
    schema = t.StructType().add("at", t.TimestampType())
    assert is_cut(pq.read_metadata(path), schema)
    found = rows([task(path)], pa.schema({"at": pa.timestamp("us", "UTC")}))
    assert [row["at"].replace(tzinfo=None) for row in found] == [moment]


SPARK_2 = {"org.apache.spark.version": "2.4.8"}
SPARK_3 = {"org.apache.spark.version": "3.0.3"}
SPARK_4 = {"org.apache.spark.version": "4.2.0"}
LEGACY = {"org.apache.spark.legacyDateTime": ""}
LEGACY_INT96 = {"org.apache.spark.legacyINT96": ""}
OLD, STRICT = ReadingRules(rebase="LEGACY"), ReadingRules(rebase="EXCEPTION")


@pytest.mark.parametrize(
    ("told", "rules", "expected"),
    [
        (SPARK_2, RULES, False),
        (SPARK_4 | LEGACY, RULES, False),
        (SPARK_4, OLD, True),
        (SPARK_3, RULES, True),
        (LEGACY, RULES, True),
        ({}, RULES, True),
        ({}, OLD, False),
        ({}, STRICT, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_files_with_days_of_an_old_calendar_are_not_cut(write, told, rules, expected, nested):
    kind = pa.list_(pa.date32()) if nested else pa.date32()
    table = pa.table({"id": [1], "day": pa.array([None], kind)}).replace_schema_metadata(told)
    metadata = pq.read_metadata(write(table))
    wanted = t.ArrayType(t.DateType()) if nested else t.DateType()
    assert is_cut(metadata, t.StructType().add("DAY", wanted), rules) is expected
    assert is_cut(metadata, t.StructType().add("id", "long"), rules)


@pytest.mark.parametrize(
    ("told", "rules", "expected"),
    [
        (SPARK_3, RULES, False),
        (SPARK_4 | LEGACY_INT96, RULES, False),
        (SPARK_4, RULES, True),
        ({}, RULES, True),
        ({}, ReadingRules(int96_rebase="LEGACY"), False),
    ],
    ids=str,
)
def test_int96_has_a_calendar_of_its_own(write, told, rules, expected):
    table = pa.table({"at": pa.array([0], pa.timestamp("us"))}).replace_schema_metadata(told)
    metadata = pq.read_metadata(write(table, use_deprecated_int96_timestamps=True))
    assert is_cut(metadata, t.StructType().add("at", "timestamp"), rules) is expected


@pytest.mark.parametrize(
    ("rules", "wanted", "expected"),
    [(RULES, "id", False), (SENSITIVE, "id", True), (SENSITIVE, "Id", True)],
)
def test_names_that_differ_by_capitals_alone_are_left_to_spark_unless_it_tells_them_apart(
    write, rules, wanted, expected
):
    metadata = pq.read_metadata(write(pa.table({"id": [1], "ID": [2]})))
    assert is_cut(metadata, t.StructType().add(wanted, "long"), rules) is expected


def test_a_column_of_a_session_that_tells_cases_apart_is_that_of_its_case(write):
    path = write(pa.table({"ID": [2], "id": [1]}))
    wanted = pa.schema({"id": pa.int64(), "Id": pa.int64()})
    assert rows([task(path)], wanted, is_case_sensitive=True) == [{"id": 1, "Id": None}]


def test_columns_that_a_file_lacks_do_not_matter(write):
    assert is_cut(metadata_of(write, pa.int64()), t.StructType().add("other", "string"))


def test_a_setting_with_which_spark_skips_or_changes_rows_is_named(write):
    rules = ReadingRules(unwanted=("spark.sql.files.ignoreCorruptFiles",))
    found = obstacle(metadata_of(write, pa.int64()), t.StructType().add("column", "long"), rules)
    assert found == "spark.sql.files.ignoreCorruptFiles is on"


def test_a_default_of_a_column_is_left_to_spark(write):
    schema = t.StructType().add("other", "long", metadata={"EXISTS_DEFAULT": "7"})
    assert "default of 'other'" in str(obstacle(metadata_of(write, pa.int64()), schema, RULES))


@pytest.mark.parametrize("name", ["a.b", "a`b", 'a"b', "a b", "ä", "a=b", "_c0"])
def test_any_name_is_found_and_names_that_begin_alike_are_others(write, name):
    table = pa.table({"a": pa.array([{"b": 5}]), name: [1], f"{name}.c": ["x"]})
    path = write(table)
    assert is_cut(pq.read_metadata(path), t.StructType().add(name, "long"))
    assert rows([task(path)], pa.schema({name: pa.int64()})) == [{name: 1}]


def test_optional_keys_of_maps_as_hive_and_trino_wrote_them_are_left_to_spark(write):
    path = write(pa.table({"id": [1], "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}))
    content = path.read_bytes()
    # The element of the schema in Thrift's compact form: type, repetition, name.
    required, optional = b"\x15\x0c\x25\x00\x18\x03key", b"\x15\x0c\x25\x02\x18\x03key"
    assert content.count(required) == 1
    path.write_bytes(content.replace(required, optional))
    found = obstacle(footer_of(path), t.StructType().add("id", "long"), RULES)
    assert found == "PyArrow does not read its schema (Map keys must be annotated as required.)"


class Keys(pe.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key, _name):
        return base64.b64encode(key)

    def unwrap_key(self, key, _name):
        return base64.b64decode(key)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_an_encrypted_file_is_left_to_spark(tmp_path, plaintext_footer):
    """PyArrow aborts the whole process when it is asked for the size of an encrypted column."""
    path, schema = tmp_path / "file.parquet", pa.schema({"open": pa.int64(), "secret": pa.int64()})
    configuration = pe.EncryptionConfiguration(
        "key", column_keys={"key": ["secret"]}, plaintext_footer=plaintext_footer
    )
    factory = pe.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    with pq.ParquetWriter(path, schema, encryption_properties=properties) as writer:
        writer.write_table(pa.table({"open": [1], "secret": [2]}))
    assert obstacle(footer_of(path), t.StructType().add("open", "long"), RULES) == "it is encrypted"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("7", "integer", True),
        ("A7", "integer", False),
        ("7", "string", True),
        ("x%2Fy", "string", True),
        ("300", "byte", False),
        ("7", "binary", False),
    ],
)
def test_values_of_directories_that_only_spark_parses_are_left_to_it(write, text, kind, expected):
    schema = t.StructType().add("column", "long").add("part", kind)
    assert (obstacle(metadata_of(write, pa.int64()), schema, RULES, {"part": text}) is None) is expected


def test_a_column_of_directories_that_stands_in_the_file_too_has_any_type_there(write):
    assert (
        obstacle(metadata_of(write, pa.time64("ns")), t.StructType().add("column", "integer"), RULES, {"column": "7"})
        is None
    )
