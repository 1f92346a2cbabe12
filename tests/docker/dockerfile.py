"""The lines of ``docker/Dockerfile``, and the files that ``Dockerfile.dockerignore`` lets through to them."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.docker.description import DOCKER, ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, its continued lines in one."""

    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, each from its FROM on."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    found: list[list[Instruction]] = []
    for word, _, rest in (line.partition(" ") for line in lines if line):
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word=word, rest=rest.strip()))
    return found


def the(word: str, stage: list[Instruction]) -> list[str]:
    """Return what follows each instruction of one kind."""
    return [instruction.rest for instruction in stage if instruction.word == word]


def copies(stage: list[Instruction]) -> list[tuple[str, str]]:
    """Return each path of the repository that a stage copies, and where it is put."""
    found = []
    for rest in the("COPY", stage):
        *sources, target = shlex.split(rest)
        if not sources[0].startswith("--from"):
            found += [(source, _place(source, target, len(sources))) for source in sources]
    return found


def let_through(path: str) -> bool:
    """
    Tell whether the build sees a path of the repository: the last pattern that matches it or a folder above decides.
    """
    seen = True
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#") and _matches(path, pattern.removeprefix("!")):
            seen = pattern.startswith("!")
    return seen


def files_let_through(source: str) -> Iterator[Path]:
    """Return the files at or below a path of the repository that the build sees."""
    start = ROOT / source
    for file in [start] if start.is_file() else sorted(start.rglob("*")):
        if file.is_file() and let_through(str(file.relative_to(ROOT))):
            yield file


def _place(source: str, target: str, sources: int) -> str:
    into = target.endswith("/") or sources > 1
    return str(PurePosixPath(target, PurePosixPath(source).name)) if into else target


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = PurePosixPath(path).parts, PurePosixPath(pattern).parts
    return any(_fits(parts[:length], wanted) for length in range(1, len(parts) + 1))


def _fits(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    if not parts or not wanted:
        return not parts and not wanted
    if wanted[0] == "**":
        return _fits(parts, wanted[1:]) or _fits(parts[1:], wanted)
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])
