"""
The 64-bit xxHash as Spark's ``xxhash64`` computes it, so that a key has the same key group in the JVM and here.

Spark hashes each column with the hash of the columns before it as seed, beginning with 42. The hash is written out here
rather than taken from a library with compiled parts, which every executor would need.
"""

from __future__ import annotations

import struct

SPARK_SEED = 42
_MASK = (1 << 64) - 1
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_4 = 0x85EBCA77C2B2AE63
PRIME_5 = 0x27D4EB2F165667C5
_STRIPE = struct.Struct("<4Q")


def hash_int(value: int, seed: int) -> int:
    """Return the hash of a number of 32 bits, from 0 to 2**64 - 1."""
    return _avalanche(_with_4_bytes((seed + PRIME_5 + 4) & _MASK, value & 0xFFFFFFFF))


def hash_long(value: int, seed: int) -> int:
    """Return the hash of a number of 64 bits, from 0 to 2**64 - 1."""
    return _avalanche(_with_8_bytes((seed + PRIME_5 + 8) & _MASK, value & _MASK))


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, from 0 to 2**64 - 1."""
    size = len(data)
    offset = size - size % 32
    hashed = (_of_stripes(data, offset, seed) if offset else (seed + PRIME_5)) + size & _MASK
    while offset + 8 <= size:
        hashed = _with_8_bytes(hashed, int.from_bytes(data[offset : offset + 8], "little"))
        offset += 8
    if offset + 4 <= size:
        hashed = _with_4_bytes(hashed, int.from_bytes(data[offset : offset + 4], "little"))
        offset += 4
    for byte in data[offset:]:
        hashed = _rotated(hashed ^ byte * PRIME_5 & _MASK, 11) * PRIME_1 & _MASK
    return _avalanche(hashed)


def key_group_of_hash(hashed: int, max_parallelism: int) -> int:
    """Return the key group of a hash: Spark's ``pmod``, for which the hash is a signed number."""
    return (hashed - (1 << 64) if hashed >> 63 else hashed) % max_parallelism


def _of_stripes(data: bytes, end: int, seed: int) -> int:
    one, two, three, four = seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1
    for offset in range(0, end, 32):
        first, second, third, fourth = _STRIPE.unpack_from(data, offset)
        one, two = _round(one, first), _round(two, second)
        three, four = _round(three, third), _round(four, fourth)
    hashed = (_rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)) & _MASK
    for lane in (one, two, three, four):
        hashed = ((hashed ^ _round(0, lane)) * PRIME_1 + PRIME_4) & _MASK
    return hashed


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * PRIME_2) & _MASK, 31) * PRIME_1 & _MASK


def _with_8_bytes(hashed: int, word: int) -> int:
    return (_rotated(hashed ^ _round(0, word), 27) * PRIME_1 + PRIME_4) & _MASK


def _with_4_bytes(hashed: int, word: int) -> int:
    return (_rotated(hashed ^ (word * PRIME_1 & _MASK), 23) * PRIME_2 + PRIME_3) & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _avalanche(hashed: int) -> int:
    hashed = (hashed ^ hashed >> 33) * PRIME_2 & _MASK
    hashed = (hashed ^ hashed >> 29) * PRIME_3 & _MASK
    return hashed ^ hashed >> 32
