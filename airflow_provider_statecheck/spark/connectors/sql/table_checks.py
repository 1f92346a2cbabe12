"""Checks of an existing table before any work: its kind, columns, keys, rules and rights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnfitOutputError
from airflow_provider_statecheck.spark.connectors.sink import CHECKPOINT, LINEAGE
from airflow_provider_statecheck.spark.connectors.sql.databases import SinkDatabase, is_incompatible
from airflow_provider_statecheck.spark.connectors.sql.loading import TableName, name_preparer
from airflow_provider_statecheck.spark.connectors.sql.row_width import RowLayout

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_RELATION = """
SELECT CAST(relkind AS TEXT), relpersistence = 'u', row_security_active(oid)
FROM pg_class WHERE oid = to_regclass(:name)
"""
_UNFIT_PARTITIONS = """
SELECT c.oid::regclass::text, c.relpersistence = 'u'
FROM pg_partition_tree(to_regclass(:name)) t JOIN pg_class c ON c.oid = t.relid
WHERE c.oid <> to_regclass(:name) AND (c.relpersistence = 'u' OR c.relkind = 'f')
"""
_RULES = """
SELECT CAST(rulename AS TEXT), CAST(ev_type AS TEXT) = '4', is_instead
FROM pg_rewrite
WHERE ev_class = to_regclass(:name) AND (ev_type = '2' OR (ev_type IN ('3', '4') AND ev_enabled <> 'D'))
"""
"""Rules for UPDATE, INSERT and DELETE; a rule for UPDATE counts for ON CONFLICT even if it is disabled."""
_COLUMNS_WITHOUT_RIGHT = """
SELECT CAST(attname AS TEXT) FROM pg_attribute
WHERE attrelid = to_regclass(:name) AND attname = ANY(CAST(:columns AS TEXT[])) AND attnum > 0 AND NOT attisdropped
  AND NOT has_column_privilege(attrelid, attnum, :right)
ORDER BY attnum
"""
_MAY_DELETE = "SELECT coalesce(has_table_privilege(to_regclass(:name), 'DELETE'), true)"
_MAY_CREATE_TEMPORARY = "SELECT has_database_privilege(current_database(), 'TEMPORARY')"
_SEQUENCES_WITHOUT_RIGHT = """
SELECT CAST(a.attname AS TEXT), s.oid::regclass::text
FROM pg_attrdef d
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass
JOIN pg_class s ON s.oid = p.refobjid
WHERE d.adrelid = to_regclass(:name)
  AND CASE s.relkind WHEN 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') END
"""
"""In CASE, because the planner may ask for the right on a relation that is no sequence, which is an error."""
_SHORT_TYPES = """
SELECT CAST(a.attname AS TEXT), format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a
WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND a.atttypid IN ('name'::regtype, '"char"'::regtype)
"""
"""Columns of types that cut texts without an error."""
_UNIQUE_COLUMNS = """
SELECT array_agg(CAST(a.attname AS TEXT))
FROM pg_index i
CROSS JOIN generate_series(0, i.indnkeyatts - 1) n
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
LEFT JOIN pg_collation c ON c.oid = i.indcollation[n]
WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indisvalid
  AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
HAVING bool_and(i.indcollation[n] = a.attcollation OR coalesce(c.collisdeterministic, true))
"""
"""
Columns of each index that ON CONFLICT can use: unique, valid, immediate, neither partial nor on expressions.

A collation other than that of the column may be nondeterministic, and then takes different keys for equal.
"""
_INDEXES_OF_SQLITE = """
SELECT name, origin FROM pragma_index_list(:table, :schema) WHERE "unique" AND NOT partial
"""
_INDEX_COLUMNS_OF_SQLITE = """
SELECT name, coll FROM pragma_index_xinfo(:index, :schema) WHERE "key" ORDER BY seqno
"""
_EQUAL_IN_SQLITE = {"NOCASE": "A", "RTRIM": "a "}
"""For each collation of SQLite but the default, a text that it takes for equal to ``a``."""
_TABLES = frozenset("rp")
_RELATIONS = {"v": "a view", "m": "a materialised view", "f": "a foreign table", "S": "a sequence", "c": "a type"}
_MARKS = (LINEAGE, CHECKPOINT)
_ON_TABLE = {"INSERT": "INSERT into it", "SELECT": "SELECT from it", "UPDATE": "UPDATE it", "DELETE": "DELETE from it"}
_UNLOGGED = "is unlogged: the database empties it after a crash (ALTER TABLE … SET LOGGED)"


def require_fitting(
    database: SinkDatabase, table: Table, keys: Sequence[str], never_null: Collection[str] = ()
) -> None:
    """
    Require an existing table that can store the output.

    :param table: Table that the sink would create.
    :param keys: Key columns for upserts; empty for inserts.
    :param never_null: Columns whose values are never null.
    :raises UnfitOutputError: if the table is incompatible; the message lists the differences.
    """
    with database.transaction() as connection:
        differences = (
            _relation_differences(connection, table, keys)
            or _table_differences(connection, table, keys)
            or _width_differences(connection, table, never_null)
        )
    if differences:
        raise UnfitOutputError(
            f"Expected a table {table.fullname} in {database.shown} that fits the output, found: "
            f"{'; '.join(differences)}. Alter the table, convert the output in the stage, or choose a table that does "
            "not exist yet.",
            differences=differences,
        )


def require_log_tables(database: SinkDatabase, heads: Table, commits: Table, *, retracts: bool) -> None:
    """
    Require the tables of the commit log as the sink creates them, and the rights for them.

    :param retracts: Whether the sink may delete the records of commits.
    :raises EnvironmentNotReadyError: if one of them cannot keep the log; the message lists the reasons.
    """
    if database.is_sqlite:
        return
    needed = {heads: ("INSERT", "SELECT", "UPDATE"), commits: ("INSERT", "SELECT")}
    for table, names in needed.items():
        columns = [column.name for column in table.columns]
        rights: dict[str, Collection[str]] = dict.fromkeys(names, columns)
        if table is heads:
            rights["UPDATE"] = ("log", "epoch")
        with database.transaction() as connection:
            found = _kind_differences(connection, table)
            found += _missing_rights(connection, table, rights, deletes=retracts and table is commits)
        if found:
            raise EnvironmentNotReadyError(
                f"Expected a table {table.fullname} in {database.shown} that keeps the commit log of the sink, found: "
                f"{'; '.join(found)}. Alter the table, or grant the rights."
            )


def columns_of(connection: Connection, table: Table | TableName) -> dict[str, Any]:
    """Return the columns of a table as the database reports them, by name."""
    from sqlalchemy import inspect

    return {each["name"]: each for each in inspect(connection).get_columns(table.name, schema=table.schema)}


def _relation_differences(connection: Connection, table: Table, keys: Sequence[str]) -> list[str]:
    """Return why a relation of this name does not take rows as a table does; empty if it is a table."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy import inspect

        views = {name.lower() for name in inspect(connection).get_view_names(schema=table.schema)}
        return ["it is a view, not a table"] if table.name.lower() in views else []
    return [*_kind_differences(connection, table), *_rule_differences(connection, table, keys)]


def _kind_differences(connection: Connection, table: Table) -> list[str]:
    found = []
    for kind, is_unlogged, has_row_security in _ask(connection, _RELATION, table):
        if kind not in _TABLES:
            found.append(f"it is {_RELATIONS.get(kind, 'another relation')}, not a table")
        if is_unlogged:
            found.append(f"it {_UNLOGGED}")
        if has_row_security:
            found.append(
                "its row security applies to the user, which COPY does not support (BYPASSRLS, or the owner, is exempt)"
            )
    return [
        *found,
        *(
            f"its partition {name} "
            f"{_UNLOGGED if is_unlogged else 'is a foreign table, which has transactions of its own'}"
            for name, is_unlogged in _ask(connection, _UNFIT_PARTITIONS, table)
        ),
    ]


def _rule_differences(connection: Connection, table: Table, keys: Sequence[str]) -> list[str]:
    found = []
    for name, is_for_delete, is_instead in _ask(connection, _RULES, table):
        if not is_for_delete and keys:
            found.append(f"its rule {name!r} is for INSERT or UPDATE, which an upsert does not support")
        if is_for_delete and is_instead and LINEAGE in table.columns:
            found.append(f"its rule {name!r} replaces DELETE, so that replaced rows would stay")
    return found


def _table_differences(connection: Connection, table: Table, keys: Sequence[str]) -> list[str]:
    found, is_sqlite = columns_of(connection, table), connection.dialect.name == "sqlite"
    differences = [
        *_column_differences(table, found, is_sqlite=is_sqlite),
        *_columns_without_value(table, found),
        *([] if is_sqlite else _postgres_differences(connection, table, keys, found)),
    ]
    if keys and not differences and not _is_unique(connection, table, keys):
        return [f"no primary key or unique index on exactly {', '.join(keys)}"]
    return differences


def _width_differences(connection: Connection, table: Table, never_null: Collection[str]) -> list[str]:
    if connection.dialect.name == "sqlite":
        return []
    found = RowLayout.of(connection, table, never_null).difference
    return [found] if found else []


def _postgres_differences(
    connection: Connection, table: Table, keys: Sequence[str], found: Collection[str]
) -> Iterator[str]:
    for name, kind in _ask(connection, _SHORT_TYPES, table):
        if name in table.columns:
            yield f"column {name!r} is {kind}, which cuts texts"
    marks = _MARKS if keys and set(_MARKS) <= set(found) else ()
    written = tuple(dict.fromkeys((*(column.name for column in table.columns), *marks)))
    yield from _missing_rights(connection, table, _needed_rights(written, keys), deletes=LINEAGE in table.columns)
    if keys and not _ask(connection, _MAY_CREATE_TEMPORARY, table)[0][0]:
        yield "the user may not create temporary tables in the database, as upserts do (GRANT TEMPORARY ON DATABASE)"
    for name, sequence in _ask(connection, _SEQUENCES_WITHOUT_RIGHT, table):
        if name not in written:
            yield f"the user may not use the sequence {sequence} of column {name!r} (GRANT USAGE ON SEQUENCE)"


def _needed_rights(written: Sequence[str], keys: Sequence[str]) -> Mapping[str, Collection[str]]:
    if not keys:
        return {"INSERT": written, "SELECT": [name for name in written if name in _MARKS]}
    updated = [name for name in written if name not in keys]
    return {"INSERT": written, "SELECT": written, "UPDATE": updated or keys[:1]}


def _missing_rights(
    connection: Connection, table: Table, rights: Mapping[str, Collection[str]], *, deletes: bool
) -> list[str]:
    found = []
    for right, columns in rights.items():
        named = {"columns": list(columns), "right": right}
        lacking = [name for (name,) in _ask(connection, _COLUMNS_WITHOUT_RIGHT, table, **named)]
        shown = f" (column {', '.join(map(repr, lacking))})" if len(lacking) < len(columns) else ""
        found += [f"the user may not {_ON_TABLE[right]}{shown}"] if lacking else []
    if deletes and not _ask(connection, _MAY_DELETE, table)[0][0]:
        found.append(f"the user may not {_ON_TABLE['DELETE']}, as marked rows are that a later attempt replaces")
    return found


def _ask(connection: Connection, statement: str, table: Table, **values: Any) -> Sequence[Any]:
    from sqlalchemy import text

    named = {"name": name_preparer().format_table(table)} if ":name" in statement else {}
    return connection.execute(text(statement), {**named, **values}).all()


def _column_differences(table: Table, found: dict[str, Any], *, is_sqlite: bool) -> list[str]:
    differences = []
    for column in table.columns:
        if column.name in (LINEAGE, CHECKPOINT) and column.name not in found:
            differences.append(f"column {column.name!r} is missing, add it as {column.type}, or set mark_rows=False")
        elif column.name not in found:
            differences.append(f"column {column.name!r} is missing")
        elif is_incompatible(column.type, found[column.name]["type"], is_sqlite=is_sqlite):
            differences.append(f"column {column.name!r} is {found[column.name]['type']} and would be {column.type}")
        elif _is_generated(found[column.name], is_upserted=bool(table.primary_key.columns)):
            differences.append(f"column {column.name!r} has values that the database generates")
    return differences


def _is_generated(column: dict[str, Any], *, is_upserted: bool) -> bool:
    # COPY, which only adds rows, writes other values into an identity column.
    return bool(column.get("computed") or (is_upserted and (column.get("identity") or {}).get("always")))


def _columns_without_value(table: Table, found: dict[str, Any]) -> list[str]:
    unwritten = [each for name, each in found.items() if name not in table.columns]
    return [
        f"column {each['name']!r} is not part of the output, is not nullable and has no default"
        for each in unwritten
        if not each["nullable"]
        and each.get("default") is None
        and not each.get("computed")
        and not each.get("identity")
    ]


def _is_unique(connection: Connection, table: Table, keys: Sequence[str]) -> bool:
    is_sqlite = connection.dialect.name == "sqlite"
    found = (
        _unique_columns_in_sqlite(connection, table) if is_sqlite else _unique_columns_in_postgres(connection, table)
    )
    return any(set(names) == set(keys) for names in found)


def _unique_columns_in_postgres(connection: Connection, table: Table) -> list[Any]:
    return [names for (names,) in _ask(connection, _UNIQUE_COLUMNS, table)]


def _unique_columns_in_sqlite(connection: Connection, table: Table) -> list[Any]:
    from sqlalchemy import inspect, text

    named = {"table": table.name, "schema": table.schema or "main"}
    indexes = connection.execute(text(_INDEXES_OF_SQLITE), named).all()
    found = [
        [name for name, _ in columns]
        for columns in (_index_columns(connection, table, index) for index, _ in indexes)
        if all(_keeps_apart(connection, table, name, collation) for name, collation in columns)
    ]
    if any(origin == "pk" for _, origin in indexes):
        return found
    # A single integer as the primary key has no index of its own.
    return [*found, inspect(connection).get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]]


def _index_columns(connection: Connection, table: Table, index: str) -> list[tuple[str | None, str]]:
    from sqlalchemy import text

    named = {"index": index, "schema": table.schema or "main"}
    return [(name, collation) for name, collation in connection.execute(text(_INDEX_COLUMNS_OF_SQLITE), named)]


def _keeps_apart(connection: Connection, table: Table, name: str | None, collation: str) -> bool:
    """Return whether an index of SQLite takes no keys for equal that its column takes for different."""
    if name is None:
        return False  # an expression
    twin = _EQUAL_IN_SQLITE.get(collation.upper())
    if twin is None:
        return collation.upper() == "BINARY"
    from sqlalchemy import column, func, literal, select, table as named, union

    # The comparison of UNION is that of the first column.
    rows = select(named(table.name, column(name), schema=table.schema).c[name]).where(literal(1) == 0)
    texts = union(rows, select(literal("a")), select(literal(twin))).subquery()
    return connection.execute(select(func.count()).select_from(texts)).scalar() == 1
