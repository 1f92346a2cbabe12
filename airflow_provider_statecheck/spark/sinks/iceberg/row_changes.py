"""
Changes of single rows of an Iceberg table: upserts, and deletes of retracted rows.

The driver writes the rows that remain of each affected data file to a new file, which replaces the old one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.sinks.commits.commit_log import CommitRange
from airflow_provider_statecheck.spark.sinks.iceberg.table_checks import has_marks
from airflow_provider_statecheck.spark.sinks.sink import CHECKPOINT, LINEAGE, ROW, last_rows, numbered

_IS_OURS = "_statecheck_is_ours"
_MOST_VALUES = 200
"""Number of values up to which pyiceberg compares each of them with the statistics of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """
    Changes of the rows of one commit.

    :param table: Loaded table.
    :param lineage: Lineage of the sink.
    :param keys: Key columns of the new rows; empty without new rows.
    :param rows: New rows as an Arrow table of :func:`read_rows`; ``None`` for none.
    :param checkpoint_id: Checkpoint of the new rows.
    :param retracted: Ranges of checkpoints whose marked rows are deleted.
    """

    table: Any
    lineage: str
    keys: Sequence[str] = ()
    rows: Any = None
    checkpoint_id: int = 0
    retracted: Sequence[CommitRange] = ()

    def carry_out(self, ignored: Collection[Any]) -> tuple[list[Any], list[Any]]:
        """
        Write the new data files; no snapshot references them yet.

        :param ignored: Data files that the same commit removes.
        :return: The data files to add and to remove.
        """
        add, remove, replaced = [], [], []
        for task in self.table.scan(row_filter=self._condition()).plan_files():
            if task.file not in ignored:
                found = read_rows(self.table, [task])
                left = self._without_retracted(found)
                kept, same_keys = self._split(left)
                if kept.num_rows < found.num_rows:
                    remove.append(task.file)
                    replaced.append(same_keys)
                    add += self._write(kept)
        return [*add, *self._write(self._marked(replaced))], remove

    def _condition(self) -> Any:
        make = _expressions()
        condition = make.AlwaysFalse()
        for each in self.retracted:
            begun = make.And(make.EqualTo(LINEAGE, self.lineage), make.GreaterThanOrEqual(CHECKPOINT, each.first))
            condition = make.Or(condition, make.And(begun, make.LessThanOrEqual(CHECKPOINT, each.last)))
        return condition if self.rows is None else make.Or(condition, _key_condition(self.rows.select(self.keys)))

    def _without_retracted(self, table: Any) -> Any:
        import pyarrow.compute as pc

        for each in self.retracted:
            checkpoint = pc.field(CHECKPOINT)
            is_between = (checkpoint >= each.first) & (checkpoint <= each.last)
            is_retracted = (pc.field(LINEAGE) == self.lineage) & is_between
            table = table.filter(pc.coalesce(~is_retracted, True))
        return table

    def _split(self, table: Any) -> tuple[Any, Any]:
        """Return the rows without a new key, and the keys and marks of the others."""
        import pyarrow.compute as pc

        if self.rows is None:
            return table, table.slice(0, 0)
        # A join of whole rows would not support nested columns.
        found = numbered(table.select(self.keys))
        matching = found.join(self.rows.select(self.keys), keys=list(self.keys), join_type="left semi")
        is_matching = pc.is_in(found.column(ROW), value_set=matching.column(ROW))
        marks = [LINEAGE, CHECKPOINT] if has_marks(self.table) else []
        return table.filter(pc.invert(is_matching)), table.filter(is_matching).select([*self.keys, *marks])

    def _marked(self, replaced: Sequence[Any]) -> Any:
        """Return the new rows; those that replace only rows of this sink keep the marks, others lose them permanently."""
        if self.rows is None or not has_marks(self.table):
            return self.rows
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self._known_marks(replaced)
        found = numbered(self.rows.select(self.keys)).join(known, keys=list(self.keys), join_type="left outer")
        found = found.sort_by(ROW)
        is_ours = pc.fill_null(found.column(_IS_OURS), True)
        checkpoint = pc.coalesce(found.column(CHECKPOINT), pa.scalar(self.checkpoint_id, pa.int64()))
        rows = _with_column(self.rows, LINEAGE, pc.if_else(is_ours, pa.scalar(self.lineage), None))
        return _with_column(rows, CHECKPOINT, pc.if_else(is_ours, checkpoint, None))

    def _known_marks(self, replaced: Sequence[Any]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = [*self.keys, LINEAGE, CHECKPOINT]
        rows = pa.concat_tables([self.rows.slice(0, 0).select(columns), *replaced])
        is_ours = pc.fill_null(pc.equal(rows.column(LINEAGE), self.lineage), False)
        marked = rows.drop_columns(LINEAGE).append_column(_IS_OURS, is_ours)
        grouped = marked.group_by(list(self.keys)).aggregate([(_IS_OURS, "all"), (CHECKPOINT, "min")])
        return grouped.rename_columns([*self.keys, _IS_OURS, CHECKPOINT])

    def _write(self, table: Any) -> list[Any]:
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        if table is None or not table.num_rows:
            return []
        return list(_dataframe_to_data_files(self.table.metadata, table, self.table.io))


def read_rows(table: Any, tasks: Sequence[Any]) -> Any:
    """Return the rows of data files in their order, with the columns of the table, as an Arrow table."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    # Readers may return equal types in different forms, such as strings with small and large offsets.
    return rows.cast(schema_to_pyarrow(table.schema(), include_field_ids=False))


def rows_of_files(table: Any, files: Sequence[Any], keys: Sequence[str]) -> Any:
    """Return the rows of data files that no snapshot references; for equal keys, the last row wins."""
    from pyiceberg.table import FileScanTask

    return last_rows(read_rows(table, [FileScanTask(file) for file in files]), keys)


def _with_column(table: Any, name: str, values: Any) -> Any:
    return table.set_column(table.schema.get_field_index(name), name, values.cast(table.schema.field(name).type))


def _key_condition(keys: Any) -> Any:
    """Return a condition that the rows with the keys fulfil, and possibly others."""
    make = _expressions()
    condition = make.AlwaysTrue()
    for name in keys.column_names:
        condition = make.And(condition, _column_condition(name, keys.column(name)))
    return condition


def _column_condition(name: str, column: Any) -> Any:
    import pyarrow.compute as pc

    make, values = _expressions(), column.unique()
    if len(values) <= _MOST_VALUES:
        return make.In(name, values.to_pylist())
    bounds = pc.min_max(values).as_py()
    return make.And(make.GreaterThanOrEqual(name, bounds["min"]), make.LessThanOrEqual(name, bounds["max"]))


def _expressions() -> Any:
    # The constructors accept names and values, which their types do not show.
    from pyiceberg import expressions

    return expressions
