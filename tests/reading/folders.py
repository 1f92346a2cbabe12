"""
Random folders of Parquet files of several writers, and random settings with which a session reads them.

All choices come from one seed. The writers are PyArrow, Spark, and Parquet's own library for Java, which writes what
older writers left behind: optional keys of maps, lists of two levels, decimals as bytes.
"""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("id", "Day", "town", "a.b", "a", "key value", "back`tick", 'quo"te', "größe", "x=y", "_c0", "select", "#")
TEXTS = ("Zürich", "日本", "a b", "a/b", "50%", "%41", "x=y", "one\u2028two", "", "null", "'", "\\", "it's: {1}", "A")
DAYS = (datetime.date(1, 1, 1), datetime.date(1500, 2, 28), datetime.date(1970, 1, 1), datetime.date(2026, 11, 29))
TIMES = tuple(datetime.datetime.combine(day, datetime.time(23, 59, 58, 123456)) for day in DAYS)
INTEGERS = (0, 1, -1, 7, 100, 127)
DOUBLES = (0.0, -0.0, 1.5, float("nan"), float("inf"), 1e300)
DECIMALS = tuple(map(decimal.Decimal, ("0.00", "1.50", "999.99")))
ROWS, ROWS_OF_A_GROUP = 8, 3

Maker = Callable[[random.Random], Any]


def one_of(*values: Any) -> Maker:
    return lambda chance: chance.choice(values)


def _list_of(maker: Maker) -> Maker:
    return lambda chance: [_or_null(maker, chance) for _ in range(chance.randint(0, 3))]


def _or_null(maker: Maker, chance: random.Random, share: float = 0.2) -> Any:
    return None if chance.random() < share else maker(chance)


def _struct(chance: random.Random) -> dict[str, Any]:
    return {"n": _or_null(one_of(*INTEGERS), chance), "s": _or_null(one_of(*TEXTS), chance)}


def _pairs(chance: random.Random) -> list[tuple[Any, Any]]:
    return [(key, _or_null(one_of(*INTEGERS), chance)) for key in chance.sample(TEXTS, chance.randint(0, 3))]


_STRUCT = pa.struct({"n": pa.int32(), "s": pa.string()})
ARROW: tuple[tuple[Any, Maker], ...] = (
    *((kind, one_of(*INTEGERS)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((kind, one_of(0, 1, 127, 200)) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *((kind, one_of(*DOUBLES)) for kind in (pa.float32(), pa.float64())),
    *((kind, one_of(*TEXTS)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    (pa.dictionary(pa.int32(), pa.string()), one_of(*TEXTS)),
    *((kind, one_of(b"", b"\x00\xff", b"abcd")) for kind in (pa.binary(), pa.large_binary())),
    (pa.binary(4), one_of(b"abcd", b"\x00\xff\x80\x01")),
    *((pa.decimal128(precision, 2), one_of(*DECIMALS)) for precision in (5, 18, 38)),
    (pa.bool_(), one_of(True, False)),
    (pa.date32(), one_of(*DAYS)),
    (pa.date64(), one_of(*DAYS)),
    *((pa.timestamp(unit, zone), one_of(*TIMES)) for unit in ("ms", "us") for zone in (None, "UTC", "Asia/Tokyo")),
    (pa.timestamp("ns"), one_of(*TIMES[2:])),
    (pa.time64("us"), one_of(datetime.time(1, 2, 3))),
    (pa.duration("us"), one_of(datetime.timedelta(1, 2, 3))),
    (pa.null(), one_of(None)),
    (pa.list_(pa.int32()), _list_of(one_of(*INTEGERS))),
    (pa.large_list(pa.string()), _list_of(one_of(*TEXTS))),
    (pa.list_(pa.timestamp("us", "UTC")), _list_of(one_of(*TIMES))),
    (pa.list_(_STRUCT), _list_of(_struct)),
    (_STRUCT, _struct),
    (pa.map_(pa.string(), pa.int64()), _pairs),
)
MARKS = ("org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96")


def write_with_arrow(chance: random.Random, names: list[str], folder: Callable[[], Path]) -> None:
    """Write files with columns of any type that PyArrow writes, in any of the formats that it writes."""
    chosen = [chance.choice(ARROW) for _ in names]
    told = {"org.apache.spark.version": chance.choice(("2.4.8", "3.0.1", "4.2.0"))} if chance.random() < 0.3 else {}
    told |= {mark: "" for mark in MARKS if chance.random() < 0.2}
    options = _options_of_arrow(chance)
    for _ in range(chance.randint(1, 3)):
        columns = {
            name: pa.array([_or_null(make, chance) for _ in range(ROWS)], kind)
            for name, (kind, make) in zip(names, chosen, strict=True)
        }
        table = pa.table(columns).replace_schema_metadata(told)
        pq.write_table(table, folder() / f"{chance.random()}.parquet", row_group_size=ROWS_OF_A_GROUP, **options)


def _options_of_arrow(chance: random.Random) -> dict[str, Any]:
    return {
        "version": chance.choice(("1.0", "2.4", "2.6")),
        "use_deprecated_int96_timestamps": chance.random() < 0.3,
        "use_compliant_nested_type": chance.random() < 0.5,
        "store_schema": chance.random() < 0.7,
        "data_page_version": chance.choice(("1.0", "2.0")),
        "compression": chance.choice(("snappy", "zstd", "gzip", "lz4", "none")),
        "use_dictionary": chance.random() < 0.7,
    }


SPARK = (
    "id",
    "cast(id as tinyint)",
    "cast(id as string)",
    "cast(id as string collate UTF8_LCASE)",
    "cast(concat('x', id) as binary)",
    "cast(id as decimal(9, 2))",
    "cast(id as decimal(38, 4))",
    "cast(id as float) / 3",
    "id % 2 = 0",
    "date_add(date '0001-01-01', cast(id * 200000 as int))",
    "timestamp '1500-01-01 01:02:03.123456' + make_dt_interval(cast(id * 50000 as int))",
    "timestamp_ntz '1500-01-01 01:02:03.123456' + make_dt_interval(cast(id * 50000 as int))",
    "array(timestamp '1500-01-01 01:02:03', null)",
    "array(named_struct('n', id, 's', array(map(date '1500-01-01', 'x'))))",
    "named_struct('a.b', id, 'A', null)",
    "map(named_struct('k', id), array(id, null))",
    "make_ym_interval(cast(id as int))",
    "make_dt_interval(cast(id as int))",
    "parse_json(concat('{\"n\": ', id, '}'))",
)
WRITING = {
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"),
    "spark.sql.parquet.datetimeRebaseModeInWrite": ("CORRECTED", "LEGACY"),
    "spark.sql.parquet.int96RebaseModeInWrite": ("CORRECTED", "LEGACY"),
    "spark.sql.parquet.writeLegacyFormat": ("false", "true"),
}


def write_with_spark(spark: Any, chance: random.Random, names: list[str], folder: Path, parts: int) -> None:
    """Write files by Spark, with the last columns as partitions."""
    from pyspark.sql import functions as F

    values = [f"if(id % 5 = 3, null, {chance.choice(SPARK)})" for _ in names]
    kinds = [chance.choice(_PARTITIONS) for _ in range(parts)]
    if parts:
        values[-parts:] = kinds
    rows = spark.range(0, ROWS * 2, 1, 1).select([F.expr(v).alias(n) for v, n in zip(values, names, strict=True)])
    writer = rows.write.mode("append").option("parquet.block.row.count.limit", str(ROWS_OF_A_GROUP))
    writer.partitionBy(*names[len(names) - parts :]).parquet(str(folder))


_PARTITIONS = (
    f"element_at(array({', '.join(repr(text) for text in TEXTS)}), cast(id % {len(TEXTS)} as int) + 1)",
    "cast(id % 3 as int)",
    "if(id % 2 = 0, null, id % 3)",
    "concat('0', id % 3)",
    "cast(id % 2 as string)",
    "date_add(date '1500-02-27', cast(id % 3 as int))",
    "timestamp '2026-01-01 01:02:03.5' + make_dt_interval(cast(id % 2 as int))",
    "cast(id % 3 as double) / 2",
    "cast(id % 2 as decimal(20, 1)) * 12345678901234567890.5",
)
MESSAGES: tuple[tuple[str, str], ...] = (
    (
        (
            "optional group pairs (MAP) { repeated group key_value { optional binary key (STRING); optional int32 "
            "value; "
            "} }"
        ),
        "map",
    ),
    (
        (
            "optional group pairs (MAP_KEY_VALUE) { repeated group map { required binary key (STRING); optional int32 "
            "value; } }"
        ),
        "map",
    ),
    ("optional group numbers (LIST) { repeated int32 array; }", "two levels"),
    ("optional group numbers (LIST) { repeated group bag { optional int32 array_element; } }", "list"),
    ("repeated int32 numbers", "repeated"),
    ("optional binary money (DECIMAL(9,2))", "bytes"),
    ("optional fixed_len_byte_array(4) money (DECIMAL(9,2))", "bytes"),
    ("optional int32 money (DECIMAL(9,2))", "int"),
    ("optional int32 small (UINT_8)", "int"),
    ("optional int64 large (UINT_64)", "long"),
    ("optional int64 at (TIMESTAMP_MILLIS)", "long"),
    ("optional binary text (ENUM)", "bytes"),
    ("optional binary text (JSON)", "bytes"),
    ("optional binary text", "bytes"),
)
"""Columns of Parquet's own library, each with the form of its values."""


def write_with_java(spark: Any, chance: random.Random, folder: Callable[[], Path]) -> None:
    """Write a file with columns that only other libraries write."""
    column, form = chance.choice(MESSAGES)
    jvm = spark._jvm
    schema = jvm.org.apache.parquet.schema.MessageTypeParser.parseMessageType(
        f"message m {{ required int32 id; {column}{'' if column.endswith('}') else ';'} }}"
    )
    path = jvm.org.apache.hadoop.fs.Path(f"{folder()}/{chance.random()}.parquet")
    builder = jvm.org.apache.parquet.hadoop.example.ExampleParquetWriter.builder(path).withType(schema)
    writer = builder.withRowGroupRowCountLimit(ROWS_OF_A_GROUP).build()
    groups, name = jvm.org.apache.parquet.example.data.simple.SimpleGroupFactory(schema), schema.getFieldName(1)
    for number in range(ROWS):
        group = groups.newGroup().append("id", number)
        if number % 3:
            _append(jvm, group, name, form, number)
        writer.write(group)
    writer.close()


def _append(jvm: Any, group: Any, name: str, form: str, number: int) -> None:
    if form in ("map", "list"):
        outer = group.addGroup(name)
        for each in range(number % 3):
            inner = outer.addGroup(0)
            if form == "map":
                inner.add(0, f"k{each}")
            inner.add(int(form == "map"), number)
    elif form == "two levels":
        inner = group.addGroup(name)
        inner.add(0, number)
        inner.add(0, -number)
    elif form == "bytes":
        group.append(name, jvm.org.apache.parquet.io.api.Binary.fromConstantByteArray(bytes((0, 0, number, 65))))
    else:
        group.append(name, number + (form == "long") * 2**40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder, and how it is read."""

    path: Path
    settings: dict[str, str] = field(default_factory=dict)
    schema: Any = None


READING = {
    "spark.sql.caseSensitive": ("true",),
    "spark.sql.session.timeZone": ("America/New_York", "Asia/Kolkata"),
    "spark.sql.ansi.enabled": ("false",),
    "spark.sql.parquet.int96RebaseModeInRead": ("LEGACY", "EXCEPTION"),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY", "EXCEPTION"),
    "spark.sql.parquet.binaryAsString": ("true",),
    "spark.sql.parquet.int96TimestampConversion": ("true",),
    "spark.sql.parquet.inferTimestampNTZ.enabled": ("false",),
    "spark.sql.legacy.parquet.nanosAsLong": ("true",),
    "spark.sql.parquet.mergeSchema": ("true",),
    "spark.sql.sources.partitionColumnTypeInference.enabled": ("false",),
    "spark.sql.parquet.enableVectorizedReader": ("false",),
    "spark.sql.files.ignoreCorruptFiles": ("true",),
}


def chosen(chance: random.Random, settings: dict[str, tuple[str, ...]], share: float) -> dict[str, str]:
    """Choose some of the settings, and a value for each."""
    return {name: chance.choice(values) for name, values in settings.items() if chance.random() < share}


def directories(chance: random.Random, names: list[str], root: Path) -> Callable[[], Path]:
    """Return a function that makes directories with values of partition columns, as other writers name them."""
    kinds = [chance.choice(_DIRECTORIES) for _ in names]

    def directory() -> Path:
        parts = [
            f"{_in_some_case(chance, name)}={chance.choice(kind)}" for name, kind in zip(names, kinds, strict=True)
        ]
        path = root.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    return directory


_DIRECTORIES = (
    ("1", "2", "__HIVE_DEFAULT_PARTITION__"),
    ("1", "A7"),
    ("001", "2"),
    ("Z%C3%BCrich", "Zürich", "a%2Fb", "%2541", "50%", "a b"),
    ("2026-01-01", "2026-02-28"),
    ("2026-01-01 01%3A02%3A03", "2026-01-01"),
    ("1.5", "2", "1e5"),
    ("12345678901234567890", "1"),
    ("true", "false"),
)


def _in_some_case(chance: random.Random, name: str) -> str:
    plain = name.replace("%", "%25").replace("=", "%3D").replace('"', "%22").replace("#", "%23").replace("/", "%2F")
    return plain.upper() if chance.random() < 0.1 else plain
