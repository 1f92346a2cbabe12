"""
Generated parts of the documentation.

``python -m scripts.docs`` writes the tables of options, arguments, commands, errors and types, and the tree of the package, into
the pages.
With ``--check`` it lists the pages that are out of date without changing them, and exits with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.docs.pages import generated

_DOCS = Path(__file__).parents[2] / "docs"
PAGES = tuple(
    _DOCS / f"{name}.md"
    for name in (
        "inside/architecture",
        "operate/troubleshooting",
        "reference/cli",
        "reference/configuration",
        "reference/types",
    )
)


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description="Write the generated parts of pages.")
    parser.add_argument("--check", action="store_true", help="only list the pages that are out of date")
    is_check = parser.parse_args(arguments).check
    stale = {page: text for page in PAGES if (text := generated(page.read_text())) != page.read_text()}
    for page, text in stale.items():
        if not is_check:
            page.write_text(text)
        print(f"{page.name}: {'out of date; run python -m scripts.docs' if is_check else 'written'}")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
