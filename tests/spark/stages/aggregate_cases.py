"""Stages of declared aggregates over columns of all types, drawn by a seed, and the same aggregates in plain Spark."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader
from airflow_provider_statecheck.spark.connectors.item_source import Opening
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.stage import Aggregate, Count, Max, Min, Stage, Sum
from airflow_provider_statecheck.spark.tables.schemas import spark_schema
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.state.source_items import Ledger
from tests.messages import make_owner
from tests.seeds import named_in_failure
from tests.shared_spark import from_arrow, setting, to_arrow
from tests.spark.stages.stage_tries import StageTries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INFINITY = float("nan"), float("inf")
IN_UTC = [
    datetime(1900, 1, 1, 0, 1, tzinfo=UTC),
    datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, 0, 1, tzinfo=UTC),
    datetime(9999, 12, 31, tzinfo=UTC),
]
TIMES = [each.replace(tzinfo=None) for each in IN_UTC]
PAIR = pa.struct([("at", pa.timestamp("us", "UTC")), ("x", pa.float64())])
PAIRS = [{"at": at, "x": x} for at in (None, *IN_UTC[:2]) for x in (None, NAN, -0.0, 1.5)]


class Column(NamedTuple):
    """Type of a column, and the values that are drawn for it besides null."""

    type: Any
    values: Sequence[Any]
    functions: Sequence[type[Aggregate]] = (Sum, Max, Min, Count)


ORDERED = (Max, Min, Count)
COLUMNS = {
    "tiny": Column(pa.int8(), [-128, 0, 127]),
    "small": Column(pa.int16(), [-5, 0, 32767]),
    "int": Column(pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "long": Column(pa.int64(), [-(2**40), 0, 1, 2**40]),
    "real": Column(pa.float32(), [-1.5, -0.0, 0.25, NAN]),
    "number": Column(pa.float64(), [-0.0, 0.5, -2.25, 2.0**40]),
    "limitless": Column(pa.float64(), [NAN, INFINITY, -INFINITY, 0.0, 1.0]),
    "price": Column(pa.decimal128(10, 2), [Decimal("-0.01"), Decimal("99999999.99"), Decimal("5.50")]),
    "exact": Column(pa.decimal128(38, 18), [Decimal("0.000000000000000001"), Decimal(-7)]),
    "flag": Column(pa.bool_(), [True, False], ORDERED),
    "text": Column(pa.string(), ["", "a", "B", "aa", "Zürich", "\N{GRINNING FACE}", "\uffff"], ORDERED),
    "numeral": Column(pa.string(), ["1", "2.5", " 3 "], (Sum,)),
    "bytes": Column(pa.binary(), [b"", b"\x00", b"\x7f", b"\xff", b"\xff\x00"], ORDERED),
    "day": Column(pa.date32(), [date(1582, 10, 4), date(1970, 1, 1), date(9999, 12, 31)], ORDERED),
    "at": Column(pa.timestamp("us", "UTC"), IN_UTC, ORDERED),
    "clock": Column(pa.timestamp("us"), TIMES, ORDERED),
    "span": Column(pa.duration("us"), [timedelta(-1), timedelta(0), timedelta(days=400, microseconds=1)]),
    "pair": Column(PAIR, PAIRS, ORDERED),
    "list": Column(pa.list_(pa.int64()), [[], [None], [1], [1, None], [1, 0], [2]], ORDERED),
    "pairs": Column(pa.list_(PAIR), [[], [None], *([pair] for pair in PAIRS[3:6]), PAIRS[4:6]], ORDERED),
    "deep": Column(
        pa.struct([("in", PAIR), ("list", pa.list_(pa.string()))]),
        [{"in": pair, "list": texts} for pair in (None, *PAIRS[4:6]) for texts in (None, ["b"], ["b", "a"])],
        ORDERED,
    ),
}
EXPRESSIONS: dict[str, tuple[type[Aggregate], str]] = {
    "all": (Count, "*"),
    "positive": (Count, "nullif(long > 0, false)"),
    "latest": (Max, "struct(at, long AS value)"),
    "shortest": (Min, "array(length(text), long)"),
    "product": (Sum, "price * int"),
    "nothing": (Max, "cast(null AS int)"),
}
LARGE = {
    "large_long": Column(pa.int64(), [2**62, 2**62 + 1, 1], (Sum,)),
    "large_decimal": Column(pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(1)], (Sum,)),
    "large_fraction": Column(pa.decimal128(38, 10), [Decimal("9" * 28), Decimal("0.0000000001")], (Sum,)),
}
"""Columns whose sums can be too large; all values have one sign, so that the order of additions does not matter."""
KEYS = {
    "k_long": Column(pa.int64(), [-1, 0, 2**40]),
    "k_text": Column(pa.string(), ["", "a", "A", "é"]),
    "k_number": Column(pa.float64(), [NAN, -0.0, 0.0, 1.5]),
    "k_decimal": Column(pa.decimal128(20, 2), [Decimal("0.01"), Decimal(-7)]),
    "k_at": Column(pa.timestamp("us", "UTC"), IN_UTC[1:3]),
    "k_clock": Column(pa.timestamp("us"), TIMES[:2]),
    "k_day": Column(pa.date32(), [date(1582, 10, 4), date(2026, 1, 1)]),
    "k_bytes": Column(pa.binary(), [b"", b"\xff"]),
    "k_flag": Column(pa.bool_(), [True, False]),
}


def drawn(chance: random.Random, rows: int) -> Any:
    """Return a table of all columns; keys are never null, and some columns of some tables are only null."""
    columns = {
        name: pa.array([chance.choice(each.values) for _ in range(rows)], each.type) for name, each in KEYS.items()
    }
    for name, each in (COLUMNS | LARGE).items():
        nulls = chance.choice((0.0, 0.3, 0.8, 1.0))
        values = [None if chance.random() < nulls else chance.choice(each.values) for _ in range(rows)]
        columns[name] = pa.array(values, each.type)
    return pa.table(columns)


def frame_of(spark: SparkSession, table: Any) -> Any:
    """
    Return a DataFrame of a table.

    Without the schema, times without a zone would get one, and Spark stops at an empty chunk.
    """
    return from_arrow(spark, table.combine_chunks(), spark_schema(table.schema))


def aggregates_of(columns: Mapping[str, Column]) -> dict[str, Aggregate]:
    """Return each function of each column."""
    return {
        f"{function.__name__.lower()}_{name}": function(name)
        for name, column in columns.items()
        for function in column.functions
    }


ALL = aggregates_of(COLUMNS) | {name: function(each) for name, (function, each) in EXPRESSIONS.items()}


@dataclass(kw_only=True)
class Case:
    """Runs of one job over splits, with some that fail at first."""

    seed: int
    tables: list[Any]
    keys: tuple[str, ...]
    aggregates: dict[str, Any]
    is_ansi: bool
    runs: list[Run]
    backend: str

    @classmethod
    def of(cls, seed: int) -> Case:
        """Draw a case."""
        chance = random.Random(seed)
        tables = [drawn(chance, chance.choice((0, 1, 30, 60))) for _ in range(chance.randint(1, 5))]
        is_ansi = chance.random() < 0.5
        names = chance.sample(sorted(ALL), chance.randint(1, len(ALL)))
        large = aggregates_of(LARGE) if not is_ansi or chance.random() < 0.3 else {}
        return cls(
            seed=seed,
            tables=tables,
            keys=tuple(chance.sample(sorted(KEYS), chance.choice((1, 1, 2, 3)))),
            aggregates={name: ALL[name] for name in names} | large,
            is_ansi=is_ansi,
            runs=list(_runs(chance, len(tables))),
            backend=chance.choice(("arrow", "arrow", "hashmap")),
        )

    def expected(self, spark: SparkSession) -> Any:
        """Return the rows of plain Spark as a table; raises if Spark does."""
        from pyspark.sql import functions as F

        columns = [F.expr(f"{each.spark_function}({each.expression})").alias(n) for n, each in self.aggregates.items()]
        with setting(spark, "spark.sql.ansi.enabled", str(self.is_ansi).lower()):
            frame = frame_of(spark, pa.concat_tables(self.tables))
            return to_arrow(frame.groupBy(*self.keys).agg(*columns))

    def found(self, tries: StageTries) -> Any:
        """Return the state after all runs as a table; raises if a run fails in another way than planned."""
        for number, run in enumerate(self.runs):
            with ExitStack() as settings:
                for key, value in run.settings(self.is_ansi).items():
                    settings.enter_context(setting(tries.spark, key, value))
                self._run(tries, run, f"2026-01-{number + 1:02d}")
        state = read_state(tries.completed()[-1].location, "aggregates").read_all()
        values = state.column("value").combine_chunks().flatten()
        names = [field.name for field in state.schema.field("value").type]
        columns = dict(zip(names, values, strict=True)) | {key: state.column(key) for key in self.keys}
        return pa.table({name: columns[name] for name in (*self.keys, *self.aggregates)})

    def _run(self, tries: StageTries, run: Run, key: str) -> None:
        failing = set(run.failing)
        source = LocalRows(list(range(run.splits)), partial(self._load, failing))
        for parallelism in run.parallelisms:
            stage = Stage("stage", max_parallelism=8, parallelism=parallelism, state_backend=self.backend).source(
                source
            )
            stage = stage.key_by(*self.keys).aggregate(**self.aggregates)
            try:
                tries.run(stage, DriverSettings(combines=run.combines), owner=make_owner(run_key=key))
            except Exception as error:
                if "planned" not in str(error):
                    raise
                continue
            return
        raise AssertionError(f"Expected the last try to succeed, found {failing} failing")

    def _load(self, failing: set[int], spark: SparkSession, split: int) -> Any:
        from pyspark.sql import functions as F

        frame = frame_of(spark, self.tables[split])
        if split not in failing or not self.tables[split].num_rows:
            return frame
        failing.remove(split)
        # Fails within a task, after others may have written their state.
        return frame.where(F.expr("if(rand() < 2, raise_error('planned'), true)"))


class LocalRows(DataFrameSource):
    """Splits of rows that the driver has, which Spark divides in the same way each time."""

    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        ledger, reader = super()._plan(opening)
        reader.has_stable_partitions = True
        return ledger, reader


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a case, over the splits of earlier runs and its own."""

    splits: int
    failing: tuple[int, ...]
    """Splits that fail in their first try."""
    parallelisms: tuple[int, ...]
    """Parallelism of each try."""
    combines: bool | None
    zone: str

    def settings(self, is_ansi: bool) -> dict[str, str]:
        """Return the settings of its session."""
        return {"spark.sql.ansi.enabled": str(is_ansi).lower(), "spark.sql.session.timeZone": self.zone}


def _runs(chance: random.Random, splits: int) -> Iterator[Run]:
    done = 0
    while done < splits:
        upto = chance.randint(done + 1, splits)
        failing = tuple(split for split in range(done, upto) if chance.random() < 0.3)
        yield Run(
            splits=upto,
            failing=failing,
            parallelisms=tuple(chance.choice((1, 2, 3)) for _ in range(len(failing) + 1)),
            combines=chance.choice((True, False, None)),
            zone=chance.choice(("UTC", "Europe/Berlin", "America/St_Johns")),
        )
        done = upto


def outcome(work: Callable[[], Any]) -> Any:
    """Return the result, or the fact that a sum is too large."""
    try:
        return work()
    except Exception as error:
        if not any(
            text in str(error) for text in ("ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "Expected sums of")
        ):
            raise
        return "too large"


def require_equal(found: Any, expected: Any, keys: Sequence[str]) -> None:
    """Require equal rows and types, up to nullability, the sign of zero, and the last digits of sums of fractions."""
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    assert {f.name: _plain(f.type) for f in found.schema} == {f.name: _plain(f.type) for f in expected.schema}
    mine, theirs = _rows(found, keys), _rows(expected, keys)
    assert mine.keys() == theirs.keys()
    for key, row in theirs.items():
        differences = {name: (mine[key][name], value) for name, value in row.items() if mine[key][name] != value}
        assert not differences, f"{key}: found and expected {differences}"


def _rows(table: Any, keys: Sequence[str]) -> dict[Any, dict[str, Any]]:
    rows = [{name: comparable(value) for name, value in row.items()} for row in table.to_pylist()]
    return {tuple(row[key] for key in keys): row for row in rows}


def comparable(value: Any) -> Any:
    """Return a value that equals another one if Spark says so."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.12g}") + 0.0
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _plain(kind: Any) -> str:
    if pa.types.is_struct(kind):
        return f"struct {[(field.name, _plain(field.type)) for field in kind]}"
    if pa.types.is_list(kind):
        return f"list {_plain(kind.value_type)}"
    return "timestamp with zone" if pa.types.is_timestamp(kind) and kind.tz else str(kind)


def case_of(*, is_ansi: bool, combines: bool, **changes: Any) -> Case:
    """Return a case with one run, by default over all types."""
    chance = random.Random(0)
    run = Run(splits=3, failing=(), parallelisms=(2,), combines=combines, zone="Europe/Berlin")
    values: dict[str, Any] = {
        "seed": 0,
        "tables": [drawn(chance, 40) for _ in range(3)],
        "keys": ("k_text",),
        "aggregates": ALL,
        "is_ansi": is_ansi,
        "runs": [run],
        "backend": "arrow",
    }
    return Case(**values | changes)


def compare(tries: StageTries, case: Case) -> None:
    """Require that a case gives the rows of plain Spark; a failure tells how to repeat it."""
    with named_in_failure(case.seed, [f"{case.keys}, {case.runs}, ANSI: {case.is_ansi}"]):
        require_equal(outcome(lambda: case.found(tries)), outcome(lambda: case.expected(tries.spark)), case.keys)
