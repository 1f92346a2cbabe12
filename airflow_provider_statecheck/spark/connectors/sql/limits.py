"""
What a table of a database cannot hold: names, and values.

The driver asks the database once, before any work; tasks compare their rows with the answer, without a connection.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnfitOutputError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.spark.connectors.limits import (
    MALFORMED,
    OUTSIDE_OF_YEARS,
    Kind,
    Limit,
    TargetLimits,
    is_text,
    limits_of,
    number_of,
    too_long,
)
from airflow_provider_statecheck.spark.connectors.sql.loading import TableName, name_preparer
from airflow_provider_statecheck.spark.connectors.sql.row_width import RowLayout, row_limits
from airflow_provider_statecheck.spark.tables.schemas import required_columns

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_SERVER = """
SELECT current_setting('max_identifier_length'), current_setting('server_encoding'), current_setting('block_size')
"""
_INDEXES = """
SELECT i.indexrelid::regclass::text, array_agg(CAST(a.attname AS TEXT))
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
CROSS JOIN generate_series(0, i.indnatts - 1) n
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
WHERE i.indrelid = to_regclass(:name) AND i.indpred IS NULL
GROUP BY i.indexrelid
"""
"""Columns of each index over all rows, also those that it only includes."""
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_MOST_COLUMNS_POSTGRES, _MOST_COLUMNS_SQLITE = 1600, 2000
_ANY_ENCODING = "SQL_ASCII"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLimits:
    """
    What a database cannot hold in any table.

    :param name_bytes: Longest name; ``None`` for any.
    :param columns: Largest number of columns of a table.
    :param reserved: Names that no column can have.
    :param codec: Codec of Python for texts other than UTF-8; ``None`` for all characters.
    :param key_bytes: Longest entry of an index; ``None`` for any.
    """

    name_bytes: int | None = None
    columns: int = _MOST_COLUMNS_SQLITE
    reserved: Collection[str] = ()
    folds_case: bool = False
    """Whether names of columns that differ only in case are equal."""
    codec: str | None = None
    key_bytes: int | None = None

    @classmethod
    def of(cls, connection: Connection) -> DatabaseLimits:
        """Return the limits of a database."""
        if connection.dialect.name == "sqlite":
            return cls(folds_case=True)
        from sqlalchemy import text

        name_bytes, encoding, block_bytes = connection.execute(text(_SERVER)).one()
        return cls(
            name_bytes=int(name_bytes),
            columns=_MOST_COLUMNS_POSTGRES,
            reserved=_SYSTEM_COLUMNS,
            codec=_codec_of(encoding),
            key_bytes=_largest_entry(int(block_bytes)),
        )

    def require_names(self, table: TableName, columns: Sequence[str], shown: str, *, is_upserted: bool = False) -> None:
        """
        Require names that the database can have.

        :param columns: All columns of the table.
        :param shown: The database, for the error message.
        :raises UnfitOutputError: if it cannot; the message has the names and the reasons.
        """
        named = [("schema", table.schema), ("table", table.name), *(("column", name) for name in columns)]
        found = [
            f"{kind} {name!r} {why}" for kind, name in named if name is not None and (why := self._fault(kind, name))
        ]
        found += self._equal_names(columns)
        # The temporary table of an upsert has a further column.
        most = self.columns - (is_upserted and not self.folds_case)
        if len(columns) > most:
            found.append(f"{len(columns)} columns where a table has {most} at most")
        if found:
            raise UnfitOutputError(
                f"Expected names that {shown} can have, found {'; '.join(found)}. Rename the columns in the stage, or "
                "choose another name of the table.",
            )

    def _fault(self, kind: str, name: str) -> str:
        size = len(name.encode(errors="surrogatepass"))
        if not name:
            return "is empty"
        if "\0" in name:
            return "has the character NUL"
        if self.name_bytes is not None and size > self.name_bytes:
            return f"has {size} bytes instead of {self.name_bytes} at most, to which the database would cut it"
        return "is a system column" if kind == "column" and name in self.reserved else ""

    def _equal_names(self, columns: Sequence[str]) -> list[str]:
        # SQLite folds the case of ASCII letters only.
        folded = [re.sub("[A-Z]", lambda letter: letter[0].lower(), name) for name in columns]
        twins = [name for name, each in zip(columns, folded, strict=True) if folded.count(each) > 1]
        return (
            [f"columns {', '.join(map(repr, twins))}, which differ only in case"] if self.folds_case and twins else []
        )


def _codec_of(encoding: str) -> str | None:
    known: Mapping[str, str] = importlib.import_module("psycopg2.extensions").encodings
    return None if encoding in ("UTF8", _ANY_ENCODING) else known.get(encoding)


def _largest_entry(block_bytes: int) -> int:
    # As BTMaxItemSize of PostgreSQL: three entries fit into a page, with its header and space.
    return (block_bytes - 40 - 16) // 3 // 8 * 8 - 8


def table_limits(
    connection: Connection, table: Table, schema: Any, *, target: str, keys: Sequence[str]
) -> TargetLimits:
    """
    Return what an existing table cannot hold.

    :param table: Table with the columns of the output.
    :param schema: Arrow schema of the output.
    :param target: The table, for error messages.
    :param keys: Key columns for upserts.
    """
    from sqlalchemy import inspect

    columns = {each["name"]: each for each in inspect(connection).get_columns(table.name, schema=table.schema)}
    required = tuple(name for name, each in columns.items() if name in table.columns and not each["nullable"])
    limits = [*limits_of(schema, (OUTSIDE_OF_YEARS, MALFORMED))]
    if connection.dialect.name == "sqlite":
        never_null = pa.schema([each for each in schema if each.name in {*keys, *required}])
        limits += limits_of(never_null, (NOT_A_NUMBER,))
    else:
        limits += _postgres_limits(connection, table, schema, {name: each["type"] for name, each in columns.items()})
        limits += row_limits(RowLayout.of(connection, table, required_columns(schema)), keys)
    return TargetLimits(target=target, keys=tuple(keys), required=required, limits=tuple(limits))


def _postgres_limits(connection: Connection, table: Table, schema: Any, types: Mapping[str, Any]) -> Iterator[Limit]:
    from sqlalchemy import text

    database = DatabaseLimits.of(connection)
    yield from limits_of(schema, (NUL,) if database.codec is None else (NUL, _not_in(database.codec)))
    for column in schema:
        yield from limits_of([column], _kinds_of_text(types[column.name]))
    for name, columns in connection.execute(text(_INDEXES), {"name": name_preparer().format_table(table)}):
        known = [schema.field(each) for each in columns if each in schema.names]
        if any(_width(each.type) is None for each in known):
            yield _entry_limit(name, known, database.key_bytes or 0)


def _kinds_of_text(kind: Any) -> tuple[Kind, ...]:
    import sqlalchemy.types as sql
    from sqlalchemy.dialects import postgresql

    if isinstance(kind, sql.JSON):
        count = partial(_count_texts, _is_jsonb if isinstance(kind, postgresql.JSONB) else _is_json)
        return (Kind("without JSON that PostgreSQL accepts", "correct them, or make the column text", is_text, count),)
    if isinstance(kind, sql.Uuid):
        return (
            Kind("without a UUID", "correct them, or make the column text", is_text, partial(_count_texts, _is_uuid)),
        )
    if isinstance(kind, sql.Enum):
        count = partial(_count_texts, partial(_is_one_of, frozenset(kind.enums)))
        return (Kind("outside of the enumeration", "replace them, or add them to the type", is_text, count),)
    length = getattr(kind, "length", None) if isinstance(kind, sql.String) else None
    return () if length is None else (too_long(length),)


def _not_in(codec: str) -> Kind:
    words = f"with characters that the database does not have in its encoding ({codec})"
    return Kind(
        words,
        "replace the characters, or use a database in UTF-8",
        is_text,
        partial(_count_texts, partial(_fits, codec)),
    )


def _count_nul(values: Any) -> int:
    return number_of(pc.match_substring(values, "\0"))


def _count_nan(values: Any) -> int:
    return number_of(pc.is_nan(values))


def _count_texts(is_valid: Callable[[str], bool], values: Any) -> int:
    try:
        texts = values.to_pylist()
    except UnicodeDecodeError:
        return 0  # reported as malformed
    return sum(1 for value in texts if value is not None and not is_valid(value))


def _is_json(value: str, number: Callable[[str], Any] = str) -> bool:
    try:
        json.loads(value, parse_constant=_refuse_constant, parse_int=number, parse_float=number)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_MOST_DIGITS, _MOST_DECIMALS, _LARGEST_EXPONENT = 131_072, 16_383, 2**30 - 1
"""
Digits before and after the point of PostgreSQL's type ``numeric``, which jsonb has numbers of, and its largest
exponent.
"""


def _is_jsonb(value: str) -> bool:
    if not _is_json(value, _require_numeric):
        return False
    if "\\u" not in value:
        return True
    codes = [found[1] for found in _ESCAPE.finditer(value)]
    try:
        json.dumps(json.loads(value, parse_int=str, parse_float=str), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False  # half of a surrogate pair
    return "u0000" not in codes


def _require_numeric(text: str) -> None:
    found = _NUMBER.fullmatch(text)
    whole, fraction, power = (found[1], found[2] or "", found[3] or "0") if found else ("", "", "")
    exponent = int(power) if len(power) <= len(str(_LARGEST_EXPONENT)) + 1 else _LARGEST_EXPONENT
    significant = len((whole + fraction).lstrip("0"))
    digits = significant - len(fraction) + exponent if significant else 0
    decimals = len(fraction) - exponent
    if abs(exponent) >= _LARGEST_EXPONENT or digits > _MOST_DIGITS or decimals > _MOST_DECIMALS:
        raise ValueError(text)


def _is_uuid(value: str) -> bool:
    # PostgreSQL knows neither the prefix urn:uuid: nor hyphens in other places than after four digits.
    text = value[1:-1] if value.startswith("{") and value.endswith("}") else value
    if not re.fullmatch(r"[0-9A-Fa-f]{4}(-?[0-9A-Fa-f]{4}){7}", text):
        return False
    return bool(uuid.UUID(text.replace("-", "")))


def _is_one_of(known: Collection[str], value: str) -> bool:
    return value in known


def _fits(codec: str, value: str) -> bool:
    try:
        value.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind))


NUL = Kind("with the character NUL", "replace(column, char(0), '')", is_text, _count_nul)
NOT_A_NUMBER = Kind("of NaN, which SQLite stores as null", "nanvl(column, 0)", _is_number, _count_nan)

_ENTRY_HEADER, _NULL_BITMAP, _LENGTH, _LARGEST_DECIMAL = 8, 8, 4, 32


def _entry_limit(index: str, columns: Sequence[Any], most: int) -> Limit:
    widths = tuple(_width(each.type) for each in columns)
    return Limit(
        columns=tuple(each.name for each in columns),
        shown=f"index {index!r} on {', '.join(each.name for each in columns)}",
        words=f"of more than {most} bytes, the largest entry of an index",
        remedy="shorten them, or index a digest of them",
        count=partial(_count_wider, widths, most),
    )


def _width(kind: Any) -> int | None:
    """Return the bytes of values of a type in an index; ``None`` if they have different lengths."""
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    return _LARGEST_DECIMAL if pa.types.is_decimal(kind) else 8


def _count_wider(widths: Sequence[int | None], most: int, *columns: Any) -> int:
    # Without PostgreSQL's compression, on which nothing can rely.
    fixed = _ENTRY_HEADER + (_NULL_BITMAP if len(columns) > 1 else 0) + sum(width or 0 for width in widths)
    texts = [column for column, width in zip(columns, widths, strict=True) if width is None]
    sizes = [pc.add(pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0), _LENGTH + 3) for column in texts]
    total = functools.reduce(pc.add, sizes)
    return number_of(pc.greater(total, most - fixed + 3))
