"""
The types of Spark, each with values that are easily lost: null, the smallest, the largest, and those of two forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.spark.tables.schemas import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.timeType.enabled": "true",
    "spark.sql.geospatial.enabled": "true",
    "spark.sql.preserveCharVarcharTypeInfo": "true",
}
"""Settings without which Spark does not have all types."""


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A type with values of it."""

    name: str
    values: tuple[str, ...]
    """SQL expressions."""

    def without(self, lost: Sequence[str]) -> TypeCase:
        """Return the type without values that a place does not have."""
        return TypeCase(self.name, tuple(value for value in self.values if not any(text in value for text in lost)))

    def column(self, rows: int) -> str:
        """Return an expression for the column of a range with a number of rows, which repeats the values and null."""
        return f"element_at(array({', '.join((*self.values, 'null'))}), cast(id % {len(self.values) + 1} as int) + 1)"


def _case(name: str, *values: str) -> TypeCase:
    return TypeCase(name, values)


def _cast(kind: str, *values: str) -> TypeCase:
    return _case(kind, *(f"cast({value} as {kind})" for value in values))


_DAY_TIME = ("day", "hour", "minute", "second")
_SAMPLES = {"day": "-3 ", "hour": "4", "minute": ":5", "second": ":6.000007"}


def _day_time_intervals() -> list[TypeCase]:
    found = []
    for first, start in enumerate(_DAY_TIME):
        for end in _DAY_TIME[first:]:
            fields = start if start == end else f"{start} to {end}"
            # One unit each, with a sign: minus one second has no days.
            ones = f"make_dt_interval({', '.join(str(int(f in (start, end))) for f in _DAY_TIME)})"
            found.append(_cast(f"interval {fields}", ones, f"-{ones}", "make_dt_interval(0)"))
    return found


_WKB_POINT = "X'0101000000000000000000F03F0000000000000040'"

CASES: tuple[TypeCase, ...] = (
    _cast("boolean", "true", "false"),
    _cast("tinyint", "-128", "127"),
    _cast("smallint", "-32768", "32767"),
    _cast("int", "-2147483648", "2147483647"),
    _cast("bigint", "-9223372036854775808L", "9223372036854775807L"),
    _cast("float", "1.5", "'nan'", "'-inf'", "'-0.0'", "3.4028235e38"),
    _cast("double", "1.5D", "'nan'", "'inf'", "'-0.0'", "4.9e-324D", "1.7976931348623157e308D"),
    _cast("decimal(10,2)", "'99999999.99'", "'-0.01'", "0"),
    _cast("decimal(38,0)", f"'{'9' * 38}'", f"'-{'9' * 38}'"),
    _cast("decimal(38,38)", f"'0.{'9' * 38}'", f"'-0.{'0' * 37}1'"),
    _case("string", "''", "'ä日😀'", "' a,\"b\\n'", "'\\\\N'"),
    _case("string collate UTF8_LCASE", "collate('a', 'UTF8_LCASE')", "collate('A', 'UTF8_LCASE')"),
    _cast("char(3)", "'a'", "'abc'"),
    _cast("varchar(3)", "''", "'abc'"),
    _cast("binary", "X''", "X'00ff'"),
    _case("date", "date'0001-01-01'", "date'1582-10-10'", "date'9999-12-31'"),
    _case("timestamp", "timestamp'0001-01-02 00:00:00.000001Z'", "timestamp'9999-12-30 23:59:59.999999Z'"),
    _case("timestamp_ntz", "timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    _case("time", "time'00:00:00'", "time'23:59:59.999999'"),
    _cast("interval year", "make_ym_interval(178956970)", "make_ym_interval(-1)"),
    _cast("interval month", "make_ym_interval(0, 2147483647)", "make_ym_interval(0, -1)"),
    _cast("interval year to month", "make_ym_interval(1, 2)", "make_ym_interval(-178956970, -8)"),
    *_day_time_intervals(),
    _case("interval", "make_interval(1, 2, 3, 4, 5, 6, 7.8)"),
    _case("void"),
    _case("variant", 'parse_json(\'{"a": [1, null, "x"]}\')', "parse_json('null')", "parse_json('1.5')"),
    _case("geometry", f"st_geomfromwkb({_WKB_POINT})"),
    _case("geography", f"st_geogfromwkb({_WKB_POINT})"),
    _case("array<int>", "array(1, null)", "cast(array() as array<int>)"),
    _case("array of required elements", "array(1, 2)"),
    _case("map<string,int>", "map('a', 1, 'b', null)", "cast(map() as map<string,int>)"),
    _case("map of structs", "map(named_struct('k', 1), array(named_struct('v', date'2026-01-01')))"),
    _case(
        "struct", "named_struct('a', cast(null as int), 'b', 'x')", "named_struct('a', 1, 'b', cast(null as string))"
    ),
    _case("struct with required fields", "named_struct('a', 1, 'b', named_struct('c', 'x'))"),
    _case("struct without fields", "named_struct()"),
    _case("struct with equal names", "named_struct('a', 1, 'a', 2)"),
    _case("struct with names in two cases", "named_struct('a', 1, 'A', 2)"),
    _case("array of voids", "array(null)"),
    _case("struct with a void", "named_struct('a', null, 'b', 1)"),
    _case("array of variants", "array(parse_json('1'), null)"),
    _case("struct with a variant", "named_struct('a', parse_json('{}'))"),
    _case("map of intervals", "map(interval '1' day, interval '2' month)"),
    _case("array of times", "array(time'12:34:56.123456', null)"),
    _case("array of collated strings", "array(collate('a', 'UTF8_LCASE'))"),
)
"""All types, and nests of those that libraries treat in other ways than Spark."""
NAMES = {case.name: case for case in CASES}
ROWS = max(len(case.values) for case in CASES) + 1


def frame_of(spark: SparkSession, cases: Sequence[TypeCase], rows: int = ROWS) -> DataFrame:
    """Return a number of rows with a column ``id`` and one for each type, named by its position."""
    frame = spark.range(0, rows, 1, 1)
    columns = [f"{case.column(rows)} as {quoted(f'c{at}')}" for at, case in enumerate(cases)]
    return frame.selectExpr("id", *columns)
