"""JSON and files that no version of this package writes, drawn by a seed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEEP = 100_000
LARGE = 1 << 40


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, 1e308),
    *("", "\0", "a\0b", "\ud800", "\x1b[2J", "x" * 3000, "../../x", "job:../x", "file:///etc/passwd", "2026-01-01"),
    *([], {}, [[]], [{}], {"kind": "file"}, {"kind": []}, {"$dict": 1}, {"$set": [{"$set": [[]]}]}, {"$datetime": [1]}),
    *(
        {"$dict": [[[], 1]]},
        {"$decimal": []},
        {"$int": "zz"},
        {"$timedelta": [10**12, 0, 0]},
        _nested(60),
        _nested(300),
    ),
)


def changed(document: Any, rng: random.Random) -> Any:
    """Return JSON with one value, at any place, replaced by an odd one, removed, or twice there."""
    copy = json.loads(json.dumps(document))
    found = list(places(copy))
    if not found:
        return rng.choice(ODD_VALUES)
    holder, key = rng.choice(found)
    what = rng.random()
    if what < 0.1:
        del holder[key]
    elif what < 0.2 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        # Values of the same type pass more checks on the way.
        alike = [each for each in ODD_VALUES if type(each) is type(holder[key])] if what < 0.7 else ODD_VALUES
        holder[key] = rng.choice(alike or ODD_VALUES)
    return copy


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return each list and object in JSON with each of its indexes or names."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield value, key
        yield from places(each)


def sealed(values: Any) -> bytes:
    """Return a metadata file with the right checksum."""
    body = values if isinstance(values, bytes) else json.dumps(values).encode()
    return b"statecheck-metadata 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)


def body_of(data: bytes) -> Any:
    """Return the values in a metadata file."""
    return json.loads(data.partition(b"\n")[2])


def remove(path: Path) -> None:
    """Remove whatever is at a path."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGE)  # a sparse file, which takes no space


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


KINDS_OF_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": _fifo,
    "directory": Path.mkdir,
    "huge": _huge,
    "endless": _endless,
    "loop of links": _loop,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "empty": Path.touch,
    "noise": lambda path: path.write_bytes(random.Random(7).randbytes(3000)),
    "deep arrays": lambda path: path.write_bytes(b"[" * DEEP),
    "deep metadata": lambda path: path.write_bytes(sealed(b"[" * DEEP + b"]" * DEEP)),
    "deep objects": lambda path: path.write_bytes(sealed(b'{"parts":[' * 400 + b"]}" * 400)),
    "long number": lambda path: path.write_bytes(sealed(b'{"checkpoint_id":' + b"9" * 5000 + b"}")),
    "many values": lambda path: path.write_bytes(sealed(b"[" + b"[]," * 2_000_000 + b"[]]")),
}
"""Functions that put something else in the place of a file."""


def put(kind: str, path: Path) -> None:
    """Put something else in the place of a file."""
    remove(path)
    KINDS_OF_FILES[kind](path)
