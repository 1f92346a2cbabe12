"""Print the definitions that only tests use, and return 1 if there are any."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from scripts.islands.code import Definition, read_modules
from scripts.islands.lists import Listed, read_roots
from scripts.islands.names import Names
from scripts.islands.roots import reported

PACKAGE = Path("airflow_provider_statecheck")
DAGS = Path("dags")
ADVICE = (
    "Only tests use these. Call each from the code that should use it, or delete it with its tests. "
    "If users call or implement it, show that on a page of docs/ and add it to the file of --roots."
)


def main(arguments: list[str] | None = None) -> int:
    """Print what is to be corrected and return the exit status."""
    chosen = _parser().parse_args(arguments)
    names = Names(read_modules([chosen.package, DAGS]), chosen.package.name)
    roots = read_roots(chosen.roots, names) if chosen.roots else Listed()
    islands = [_describe(each) for each in reported(names, chosen.package, roots.places)]
    lines = [*roots.errors, *islands, *([ADVICE] if islands else [])]
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


def _describe(definition: Definition) -> str:
    return f"{definition.module.path}:{definition.line}: {definition.kind} {definition.name}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.islands", description="Find code that only tests use.")
    parser.add_argument("--package", type=_package, default=PACKAGE, help="its folder (default: %(default)s)")
    parser.add_argument("--roots", type=_file, metavar="FILE", help="names that users call or implement")
    return parser


def _package(place: str) -> Path:
    _file(f"{place}/__init__.py")
    return Path(place)


def _file(place: str) -> Path:
    if not Path(place).is_file():
        raise argparse.ArgumentTypeError(f"expected a file, found none at {place}")
    return Path(place)


if __name__ == "__main__":
    # All trees are needed until the end, so the collector would find nothing, again and again.
    gc.disable()
    sys.exit(main())
