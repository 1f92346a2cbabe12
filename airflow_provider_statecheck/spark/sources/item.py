"""What a source knows of each file, or of each part that a user named."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError

_DIGEST_BYTES = 8
_APART = "\0"


@dataclass(frozen=True, slots=True)
class Item:
    """A file, or a part that a user named, as it was listed."""

    name: str
    """Its URI, or its key."""
    size_bytes: int
    digest: bytes
    """Differs if the size or what the filesystem says of its version differs."""

    @classmethod
    def of(cls, name: str, size_bytes: int, version: object) -> Item:
        """
        Return an item of a listing.

        :param version: What changes with the content, such as an ETag or the time of the last change.
        """
        told = f"{size_bytes}:{version}".encode("utf-8", "surrogatepass")
        return cls(name, size_bytes, hashlib.blake2b(told, digest_size=_DIGEST_BYTES).digest())


def pack_items(items: Sequence[Item]) -> dict[str, bytes]:
    """Return items in a few bytes each: names that are alike cost little."""
    names = _APART.join(item.name for item in items).encode("utf-8", "surrogatepass")
    return {
        "names": zlib.compress(names, 9),
        "sizes": zlib.compress(array("Q", [item.size_bytes for item in items]).tobytes(), 9),
        "digests": b"".join(item.digest for item in items),
    }


def unpack_items(packed: Mapping[str, Any]) -> tuple[Item, ...]:
    """
    Return items that were packed.

    :raises CorruptStateError: if they are not of this form.
    """
    try:
        return _unpacked(packed)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CorruptStateError(f"Expected the listing of a source, found something else: {error}.") from error


def _unpacked(packed: Mapping[str, Any]) -> tuple[Item, ...]:
    sizes = array("Q")
    sizes.frombytes(zlib.decompress(packed["sizes"]))
    names = zlib.decompress(packed["names"]).decode("utf-8", "surrogatepass").split(_APART) if sizes else []
    if len(packed["digests"]) != _DIGEST_BYTES * len(sizes):
        raise ValueError(f"{len(packed['digests'])} bytes of digests for {len(sizes)} files")
    digests = (packed["digests"][i * _DIGEST_BYTES : (i + 1) * _DIGEST_BYTES] for i in range(len(sizes)))
    return tuple(Item(*fields) for fields in zip(names, sizes, digests, strict=True))
