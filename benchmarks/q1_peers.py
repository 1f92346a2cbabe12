"""
Peers of Q1 with the same rows sorted by key: DuckDB on Parquet, RocksDB, and binary search in a mapped Arrow file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from rocksdict import BlockBasedOptions, Cache, Options, Rdict, SstFileWriter

_ROW_GROUP = 122_880
"""Rows per row group, the default of DuckDB."""
_CACHE_BYTES = 256 << 20
"""Block cache of RocksDB, as large as that of the state server."""
_KEY, _VALUE = struct.Struct(">q"), struct.Struct("<d")
Get = Callable[[int], Any]


def write_parquet(table: Any, uri: str, options: dict[str, Any]) -> None:
    """Write rows, sorted by key, to a Parquet file."""
    with fsspec.open(uri, "wb", **options) as file:
        pq.write_table(table, file, row_group_size=_ROW_GROUP, compression="zstd")


def duckdb_look_up(uri: str, options: dict[str, Any]) -> Get:
    """Return the point query of a new connection, which keeps the metadata of the file."""
    connection = duckdb.connect()
    if options:
        connection.register_filesystem(fsspec.filesystem(uri.partition("://")[0], **options))
    connection.execute("SET parquet_metadata_cache = true")
    query = f"SELECT balance FROM read_parquet('{uri}') WHERE id = ?"

    def get(key: int) -> Any:
        row = connection.execute(query, [key]).fetchone()
        return None if row is None else row[0]

    return get


def write_rocksdb(table: Any, folder: Path) -> None:
    """Write rows to a RocksDB database with one sorted file."""
    folder.mkdir()
    writer = SstFileWriter(_options())
    writer.open(str(folder / "rows.sst"))
    for key, value in zip(table["id"].to_pylist(), table["balance"].to_pylist(), strict=True):
        writer[_KEY.pack(key)] = _VALUE.pack(value)
    writer.finish()
    database = Rdict(str(folder / "db"), _options())
    database.ingest_external_file([str(folder / "rows.sst")])
    database.close()


def rocksdb_look_up(folder: Path) -> Get:
    """Return the look-up of a database that is opened."""
    database = Rdict(str(folder / "db"), _options())

    def get(key: int) -> Any:
        found = database.get(_KEY.pack(key))
        return None if found is None else _VALUE.unpack(found)[0]

    return get


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    return options


def write_arrow(table: Any, path: Path) -> None:
    """Write rows to an uncompressed Arrow file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def arrow_look_up(path: Path) -> Get:
    """Return a binary search in the mapped file, which must have one record batch."""
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    ids, balances = batch.column("id").to_numpy(), batch.column("balance")

    def get(key: int) -> Any:
        row = int(ids.searchsorted(key))
        return balances[row].as_py() if row < len(ids) and ids[row] == key else None

    return get
