"""The places where rows are written and read, each with what its own library finds there."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    CharType,
    GeographyType,
    GeometryType,
    MapType,
    NullType,
    StructType,
    VarcharType,
    VariantType,
)

from airflow_provider_statecheck import (
    DataFrameSource,
    DeltaSink,
    IcebergSink,
    KeyedProcessFunction,
    ParquetSink,
    SqlSink,
    Stage,
    ValueStateDescriptor,
    run_stage,
)
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.snapshots.columns import (
    nested_types,
    readable_type,
    stored_schema,
    with_plain_text,
)
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot
from airflow_provider_statecheck.spark.stages.stage import Count, Max
from airflow_provider_statecheck.spark.tables.schemas import all_nullable, arrow_schema, union_all
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def checkpoints(folder: Path) -> dict[str, Any]:
    return {"checkpoint_dir": str(folder / "checkpoints"), "metadata": f"sqlite:///{folder}/state.db"}


def chosen(frame: DataFrame, condition: str) -> DataFrame:
    """Return rows in SQL, because DataFrames themselves cannot filter char and varchar."""
    return frame.sparkSession.sql(f"select * from {{rows}} where {condition}", rows=frame)


def run(frame: DataFrame, folder: Path, build: Callable[[Stage], Stage], *splits: DataFrame) -> None:
    """Run a stage over the splits of a DataFrame, by default two halves."""
    given = splits or tuple(chosen(frame, f"id % 2 = {half}") for half in range(2))
    source = DataFrameSource(list(range(len(given))), lambda spark, split: given[split])
    stage = build(Stage("stage", max_parallelism=8, parallelism=1).source(source))
    run_stage(frame.sparkSession, stage, job="job", **checkpoints(folder))


class Kept:
    """Sink that keeps the tables of its tasks in Arrow files, which have all types of Arrow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, context: Any) -> None:
        """Do nothing: the sink accepts any output."""

    def commit(self, checkpoint_id: int, committables: Any) -> None:
        """Do nothing: the files are kept from the start."""

    def close(self, succeeded: bool) -> None:
        """Do nothing."""

    def writer(self, context: Any) -> KeptWriter:
        return KeptWriter(self._folder, context.schema)


class KeptWriter:
    def __init__(self, folder: str, schema: Any) -> None:
        self._folder, self._tables, self._schema = folder, [schema.empty_table()], schema

    def write(self, table: Any) -> None:
        self._tables.append(table.select(self._schema.names).cast(self._schema))

    def prepare_commit(self) -> list[dict[str, Any]]:
        Path(self._folder).mkdir(exist_ok=True)
        table = pa.concat_tables(self._tables)
        with (
            pa.OSFile(f"{self._folder}/{uuid.uuid4().hex}.arrow", "wb") as file,
            pa.ipc.new_file(file, table.schema) as out,
        ):
            out.write_table(table)
        return [{}]

    def abort(self) -> None:
        """Do nothing."""


def kept(folder: Path) -> Any:
    """Return the rows of :class:`Kept`."""
    files = sorted(folder.glob("*.arrow"))
    return pa.concat_tables([pa.ipc.open_file(str(file)).read_all() for file in files])


class Remembered(KeyedProcessFunction[Any, Any, Any]):
    """Emits the values of the split before, from its state."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types

    def open(self, runtime_context: Any) -> None:
        self._states = {
            name: runtime_context.get_state(ValueStateDescriptor(name, kind)) for name, kind in self._types.items()
        }
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", bool))

    def process_element(self, value: Any, context: Any) -> Any:
        row = value._asdict()
        if self._seen.value():
            yield {**row, **{name: state.value() for name, state in self._states.items()}}
        self._seen.update(True)
        for name, state in self._states.items():
            state.update(_as_state(row[name], self._types[name])) if row[name] is not None else state.clear()


def _as_state(value: Any, kind: Any) -> Any:
    """Return a value of a row as state has it: functions get the entries of a map as pairs."""
    return dict(value) if pa.types.is_map(kind) else value


class Passed(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Any:
        yield value


def snapshot(frame: DataFrame, folder: Path) -> DataFrame:
    with StageContext.open(frame.sparkSession, job="job", **checkpoints(folder)) as checkpoint:
        return checkpoint.snapshot("rows", lambda: frame)


def snapshot_by_executors(frame: DataFrame, folder: Path) -> DataFrame:
    frames = StoredDataFrames(CheckpointStorage.open(str(folder / "out")))
    data = folder / "out" / "step" / "data"
    data.mkdir(parents=True)
    uri = f"file://{data}"
    manifest = frames.write_on_executors(frame, uri)
    return frames.read(frame.sparkSession, [StoredSnapshot(uri.removesuffix("/data"), manifest)])


def step_in_parts(frame: DataFrame, folder: Path) -> DataFrame:
    _write_parquet(frame, folder)
    scan = frame.sparkSession.read.parquet(str(folder / "in"))
    with StageContext.open(frame.sparkSession, job="job", **checkpoints(folder)) as checkpoint:
        return checkpoint.snapshot("rows", lambda rows: rows, over=scan)


def functions(frame: DataFrame, folder: Path) -> Any:
    def build(stage: Stage) -> Stage:
        passed = stage.map(lambda row: row).key_by("id").process(Passed(), output=frame.schema)
        return passed.map(lambda row: row, uid="again").sink(Kept(str(folder / "out")))

    run(frame, folder, build)
    return kept(folder / "out")


def state(frame: DataFrame, folder: Path) -> Any:
    for column in frame.schema.fields:
        if isinstance(column.dataType, MapType) and isinstance(column.dataType.keyType, StructType):
            raise AbsentError(column.name)  # no dictionary of Python has a dictionary as a key
    # Times of day have microseconds in Python, and nanoseconds between Python and Spark.
    types = {field.name: field.type for field in stored_schema(arrow_schema(frame.schema)) if field.name != "id"}
    remembered, target = Remembered(types), Kept(str(folder / "out"))
    output = arrow_schema(frame.schema)
    run(frame, folder, lambda stage: stage.key_by("id").process(remembered, output=output).sink(target), frame, frame)
    return kept(folder / "out")


def key(frame: DataFrame, folder: Path) -> Any:
    """Return the values by which a stage has grouped rows, from the results of its aggregate."""
    names = frame.columns[1:]
    # A key is never null.
    rows = chosen(frame, " and ".join(f"{name} is not null" for name in names)) if names else frame
    run(
        rows, folder, lambda stage: stage.key_by(*frame.columns).aggregate(n=Count("1")).sink(Kept(str(folder / "out")))
    )
    return rows, kept(folder / "out")


def largest(frame: DataFrame, folder: Path) -> Any:
    for name in frame.columns[1:]:
        try:
            frame.selectExpr(f"max({name})")
        except AnalysisException as error:
            raise AbsentError(name) from error  # Spark itself has no largest value of the type
    declared: dict[str, Any] = {name: Max(name) for name in frame.columns[1:]}
    run(frame, folder, lambda stage: stage.key_by("id").aggregate(**declared).sink(Kept(str(folder / "out"))))
    return kept(folder / "out")


def parquet_sink(frame: DataFrame, folder: Path) -> Any:
    run(frame, folder, lambda stage: stage.sink(ParquetSink(str(folder / "out"))))
    return frame.sparkSession.read.parquet(str(folder / "out"))


def parquet_sink_in_arrow(frame: DataFrame, folder: Path) -> Any:
    parquet_sink(frame, folder)
    return ds.dataset(str(folder / "out"), ignore_prefixes=["_"]).to_table()


def delta_sink(frame: DataFrame, folder: Path) -> Any:
    run(frame, folder, lambda stage: stage.sink(DeltaSink(str(folder / "out"))))
    return pa.table(DeltaTable(str(folder / "out")).to_pyarrow_table())


def delta_upserts(frame: DataFrame, folder: Path) -> Any:
    run(frame, folder, lambda stage: stage.sink(DeltaSink(str(folder / "out"), upsert_by=["id"])))
    return pa.table(DeltaTable(str(folder / "out")).to_pyarrow_table()).select(frame.columns)


def catalog_of(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def iceberg_sink(frame: DataFrame, folder: Path) -> Any:
    properties = catalog_of(folder / "out")
    catalog = load_catalog(None, **properties)
    catalog.create_namespace("s")
    with suppress(Exception):  # a type that PyIceberg lacks is refused without a look at the table
        catalog.create_table("s.t", all_nullable(arrow_schema(frame.schema)))
    try:
        run(frame, folder, lambda stage: stage.sink(IcebergSink("s.t", properties=properties)))
        return catalog.load_table("s.t").scan().to_arrow()
    finally:
        catalog.close()


LOST_IN_SQLITE = ("'nan'", "'-0.0'")
"""Values that SQLite does not have."""


def sqlite_sink(frame: DataFrame, folder: Path) -> Any:
    return sql_sink(frame, folder, url=f"sqlite:///{folder}/out.db")


def sql_sink(frame: DataFrame, folder: Path, *, url: str) -> Any:
    name = f"t_{uuid.uuid4().hex}"
    run(frame, folder, lambda stage: stage.sink(SqlSink(url, name, staging=str(folder / "staged"))))
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    table = sa.Table(name, sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(*(table.c[column] for column in frame.columns))).fetchall()
    return {
        str(column): (table.c[column].type.compile(engine.dialect), [row[at] for row in rows])
        for at, column in enumerate(frame.columns)
    }


class AbsentError(Exception):
    """
    A format does not have the type of a column.

    :param name: The column.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"The format does not have the type of '{name}'.")


def drained(source: Any, spark: SparkSession) -> DataFrame:
    enumerator, frames = source.open(spark), []
    for increment in iter(enumerator.next_increment, None):
        frames.append(enumerator.load(increment))
        enumerator.finish(increment)
    return union_all(frames)


def _write_parquet(frame: DataFrame, folder: Path, **options: str) -> None:
    """Write rows with Spark's own writer, which names a column whose type it does not have."""
    _require_written(frame)
    try:
        frame.write.options(**options).parquet(str(folder / "in"))
    except AnalysisException as error:
        named = re.search(r"`(c\d+)`", str(error))
        if named is None:
            raise
        raise AbsentError(named[1]) from error


def _require_written(frame: DataFrame) -> None:
    """Require types that Spark writes, as far as its errors do not name the column."""
    for column in frame.schema.fields:
        if any(_is_unwritten(kind) for kind in nested_types(column.dataType)):
            raise AbsentError(column.name)


def _is_unwritten(kind: Any) -> bool:
    if isinstance(kind, StructType):
        return len({name.lower() for name in kind.names}) < max(len(kind.names), 1)
    return isinstance(kind, CharType | VarcharType)


def parquet_source(frame: DataFrame, folder: Path) -> DataFrame:
    _write_parquet(frame, folder)
    return drained(ParquetSource(str(folder / "in")), frame.sparkSession)


def parquet_source_cut(frame: DataFrame, folder: Path) -> DataFrame:
    _write_parquet(frame, folder, **{"parquet.block.row.count.limit": "2"})
    return drained(ParquetSource(str(folder / "in"), row_groups_per_increment=1), frame.sparkSession)


def _require_in(frame: DataFrame, convert: Callable[[Any], Any]) -> None:
    """Require types that the schema of a library has."""
    for column in frame.schema.fields[1:]:
        kinds = nested_types(column.dataType)
        if any(isinstance(kind, VariantType | GeometryType | GeographyType | NullType) for kind in kinds):
            raise AbsentError(column.name)
        try:
            convert(stored_schema(arrow_schema(StructType([column]))))
        except Exception as error:  # the classes differ between libraries
            raise AbsentError(column.name) from error


def plain(frame: DataFrame) -> DataFrame:
    """
    Return the same values in types that can be null, and text of any length.

    Spark itself converts neither char and varchar to Arrow, nor null where a part is never null.
    """
    fields = with_plain_text(frame.schema).fields
    return frame.select([F.col(field.name).cast(readable_type(field.dataType)).alias(field.name) for field in fields])


def delta_source(frame: DataFrame, folder: Path) -> DataFrame:
    _require_in(frame, deltalake.Schema.from_arrow)
    write_deltalake(str(folder / "in"), plain(frame).toArrow())
    return drained(DeltaSource(str(folder / "in")), frame.sparkSession)


def iceberg_source(frame: DataFrame, folder: Path) -> DataFrame:
    _require_in(frame, _pyarrow_to_schema_without_ids)
    properties = catalog_of(folder / "in")
    catalog = load_catalog(None, **properties)
    try:
        catalog.create_namespace("s")
        table = plain(frame).toArrow()
        table = table.cast(stored_schema(table.schema))
        catalog.create_table("s.t", table.schema).append(table)
        return drained(IcebergSource("s.t", properties=properties), frame.sparkSession)
    finally:
        catalog.close()
