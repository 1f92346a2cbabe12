"""
Key groups: the hash of a key, and the group of a hash.

The hash is the 64-bit xxHash that Spark's ``xxhash64`` computes. The seed of the first column is 42; the seed of each
further column is the hash of the previous columns. The hash is implemented in Python because a compiled library would
have to be installed on every executor.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.lazy import np, pa

SPARK_SEED = 42
_MASK = (1 << 64) - 1
_PRIME_1 = 0x9E3779B185EBCA87
_PRIME_2 = 0xC2B2AE3D27D4EB4F
_PRIME_3 = 0x165667B19E3779F9
_PRIME_4 = 0x85EBCA77C2B2AE63
_PRIME_5 = 0x27D4EB2F165667C5
_BATCH_BYTES = 1 << 22


def key_group_of_hash(hashed: int, max_parallelism: int) -> int:
    """Return the key group of an unsigned hash: Spark's ``pmod`` of the signed hash and ``max_parallelism``."""
    return (hashed - (1 << 64) if hashed >> 63 else hashed) % max_parallelism


def key_groups_of_hashes(hashed: Any, max_parallelism: int) -> Any:
    """Return the key groups of a numpy array of uint64 with hashes, as one of int32; see :func:`key_group_of_hash`."""
    return (hashed.view(np.int64) % max_parallelism).astype(np.int32)


def hash_int(value: Any, seed: Any) -> Any:
    """
    Return the unsigned 64-bit hash of a 32-bit integer, or the hashes of an array of uint64 with an array of seeds.
    """
    return _avalanche(_mix_4_bytes(seed + (_PRIME_5 + 4), value & 0xFFFFFFFF))


def hash_long(value: Any, seed: Any) -> Any:
    """
    Return the unsigned 64-bit hash of a 64-bit integer, or the hashes of an array of uint64 with an array of seeds.
    """
    return _avalanche(_mix_8_bytes(seed + (_PRIME_5 + 8), value))


def hash_bytes(data: bytes, seed: int) -> Any:
    """Return the unsigned 64-bit hash of bytes."""
    size = len(data)
    long, rest = size & ~7, size & ~3
    words = memoryview(data[:long]).cast("Q") if long else ()
    half = int.from_bytes(data[long:rest], "little") if rest > long else None
    return _hash_words(size, words, half, data[rest:], seed)


def hash_byte_strings(column: Any, seeds: Any) -> Any:
    """Return the hashes of a column of texts or bytes with an array of seeds, as a numpy array of uint64."""
    # Values of equal length are hashed together, as the rows of a matrix.
    starts, lengths, data = _byte_ranges(column)
    hashed = np.empty(len(seeds), dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        for batch in np.array_split(rows, len(rows) * length // _BATCH_BYTES + 1):
            hashed[batch] = _hash_matrix(data[starts[batch][:, None] + np.arange(length)], seeds[batch])
    return hashed


def _byte_ranges(column: Any) -> tuple[Any, Any, Any]:
    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    large = column.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds[:-1], np.diff(bounds), content


def _hash_matrix(matrix: Any, seeds: Any) -> Any:
    size = matrix.shape[1]
    long, rest = size & ~7, size & ~3
    words = np.ascontiguousarray(matrix[:, :long]).view(np.uint64).T
    halves = np.ascontiguousarray(matrix[:, long:rest]).view(np.uint32).T.astype(np.uint64)
    return _hash_words(size, words, halves[0] if rest > long else None, matrix[:, rest:].T.astype(np.uint64), seeds)


# The functions below take integers, or numpy arrays of uint64. Arrays drop the bits above 64 by themselves. Integers
# keep them, and drop them before a shift to the right and in the result.


def _hash_words(size: int, words: Any, half: Any, rest: Any, seed: Any) -> Any:
    """Return the hash of ``size`` bytes: words of 8 bytes, then one of 4 bytes or ``None``, then single bytes."""
    striped = size // 32 * 4
    hashed = (_hash_stripes(words[:striped], seed) if striped else seed + _PRIME_5) + size
    for word in words[striped:]:
        hashed = _mix_8_bytes(hashed, word)
    if half is not None:
        hashed = _mix_4_bytes(hashed, half)
    for byte in rest:
        hashed = _rotate_left(hashed ^ byte * _PRIME_5, 11) * _PRIME_1
    return _avalanche(hashed)


def _hash_stripes(words: Any, seed: Any) -> Any:
    lanes = [seed + (_PRIME_1 + _PRIME_2 & _MASK), seed + _PRIME_2, seed, seed - _PRIME_1]
    for number, lane in enumerate(lanes):
        for word in words[number::4]:
            lane = _rotate_left(lane + word * _PRIME_2, 31) * _PRIME_1
        lanes[number] = lane
    hashed = sum(_rotate_left(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        hashed = (hashed ^ _rotate_left(lane * _PRIME_2, 31) * _PRIME_1) * _PRIME_1 + _PRIME_4
    return hashed


def _mix_8_bytes(hashed: Any, word: Any) -> Any:
    return _rotate_left(hashed ^ _rotate_left(word * _PRIME_2, 31) * _PRIME_1, 27) * _PRIME_1 + _PRIME_4


def _mix_4_bytes(hashed: Any, word: Any) -> Any:
    return _rotate_left(hashed ^ word * _PRIME_1, 23) * _PRIME_2 + _PRIME_3


def _rotate_left(value: Any, bits: int) -> Any:
    if type(value) is int:
        value &= _MASK
    return value << bits | value >> (64 - bits)


def _avalanche(hashed: Any) -> Any:
    if type(hashed) is int:
        hashed &= _MASK
        hashed = (hashed ^ hashed >> 33) * _PRIME_2 & _MASK
        hashed = (hashed ^ hashed >> 29) * _PRIME_3 & _MASK
    else:
        hashed = (hashed ^ hashed >> 33) * _PRIME_2
        hashed = (hashed ^ hashed >> 29) * _PRIME_3
    return hashed ^ hashed >> 32
