"""
Where a secret can be read that must be read nowhere.

::

    places = [*files(logs_folder), *rows(engine), *command_lines(), *page(spark_url)]
    assert find([token], places) == []

A place is a name and its bytes. Each secret is looked for as it is and as it would look in base64, in a URL, in JSON,
or in the notation of Python. Take the command lines while the processes run: ``CommandLines`` collects them from a
thread until it is left.

Nothing found says little by itself: plant a secret of your own beside the real one and see that it is found.
"""

from __future__ import annotations

import base64
import gzip
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import MetaData, Table, inspect, select
from sqlalchemy.engine import Engine

AIRFLOW_TABLES = ("rendered_task_instance_fields", "xcom", "task_state_store", "log")
"""What Airflow keeps of a task and shows to users."""

_PAGE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Place:
    """Something that was written down."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Leak:
    """A secret that was found; which one is told by its position, so that the report does not leak it again."""

    secret: int
    form: str
    place: str


def find(secrets: Iterable[str], places: Iterable[Place]) -> list[Leak]:
    """
    Look for each secret in each place.

    :param secrets: Texts of at least eight characters.
    :param places: Where to look.
    """
    forms = [(number, form, text) for number, secret in enumerate(secrets) for form, text in _forms(secret)]
    return list(
        dict.fromkeys(
            Leak(number, form, place.name) for place in places for number, form, text in forms if text in place.content
        )
    )


def files(*folders: Path) -> Iterator[Place]:
    """Return every file below some folders, and what is packed in those that end in ``.gz``."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                yield Place(str(path), gzip.decompress(content) if path.suffix == ".gz" else content)


def rows(engine: Engine, tables: Iterable[str] = AIRFLOW_TABLES) -> Iterator[Place]:
    """
    Return every row of some tables.

    :raises LookupError: for a table that is not there, for nothing would be found in it.
    """
    missing = set(tables) - set(inspect(engine).get_table_names())
    if missing:
        raise LookupError(f"Expected the tables {sorted(missing)} in {engine.url.render_as_string()}, found none.")
    with engine.connect() as connection:
        for name in tables:
            table = Table(name, MetaData(), autoload_with=engine)
            for number, row in enumerate(connection.execute(select(table))):
                yield Place(f"row {number} of table {name}", b"\n".join(map(_bytes, row)))


def command_lines(proc: Path = Path("/proc")) -> Iterator[Place]:
    """Return the command line of every process of this machine."""
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            content = path.read_bytes().replace(b"\0", b" ")
        except OSError:
            continue  # it ended meanwhile
        yield Place(f"command line of process {path.parent.name}", content)


def page(url: str) -> Iterator[Place]:
    """Return what a server answers, such as the environment page of Spark's UI."""
    with urllib.request.urlopen(url, timeout=_PAGE_SECONDS) as reply:
        yield Place(f"page {url}", reply.read())


class CommandLines:
    """
    Collects command lines as long as its context lasts, also those of short processes.

    :param pause_seconds: How long to wait between two looks.
    """

    def __init__(self, pause_seconds: float = 0.05) -> None:
        self._pause = pause_seconds
        self._seen: dict[Place, None] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True, name="command-lines")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def places(self) -> list[Place]:
        """What was seen."""
        return list(self._seen)

    def _collect(self) -> None:
        self._look()
        while not self._over.wait(self._pause):
            self._look()
        self._look()

    def _look(self) -> None:
        self._seen |= dict.fromkeys(command_lines())


def _forms(secret: str) -> Iterator[tuple[str, bytes]]:
    if len(secret) < 8:
        raise ValueError(
            f"Expected a secret of at least 8 characters, found {len(secret)}: it would be found anywhere."
        )
    raw = secret.encode()
    yield "plain", raw
    yield from {("url", text) for text in _quoted(secret) if text != raw}
    yield from {("literal", text) for text in _literals(secret) if text != raw}
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield "base64", _inside(encode(b"\0" * offset + raw), offset)


def _quoted(secret: str) -> set[bytes]:
    plain, form = urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret, safe="")
    everything = "".join(f"%{byte:02X}" for byte in secret.encode())
    return {plain.encode(), form.encode(), everything.encode(), everything.lower().encode()}


def _literals(secret: str) -> set[bytes]:
    forms = repr(secret), ascii(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False)
    return {form[1:-1].encode() for form in forms}


def _inside(encoded: bytes, offset: int) -> bytes:
    # The secret may stand in the middle of what was encoded: only characters that it alone decides are looked for.
    body = encoded.rstrip(b"=")
    start = 0 if offset == 0 else offset + 1
    return body[start : len(body) - (len(encoded) > len(body))]


def _bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode(errors="replace")
