"""
Generated parts of the documentation.

``python -m scripts.docs`` writes the tables of options, arguments, commands, errors, types, versions and lost work, and
the tree of the package, into the pages, and the figures of the benchmarks with their picture into the README. With
``--check`` it lists the pages that are out of date without changing them, and exits with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.docs.figures import DARK, LIGHT, retry_picture
from scripts.docs.pages import generated

_ROOT = Path(__file__).parents[2]
PAGES = tuple(
    _ROOT / f"{name}.md"
    for name in (
        "README",
        "docs/inside/architecture",
        "docs/operate/troubleshooting",
        "docs/reference/cli",
        "docs/reference/compatibility",
        "docs/reference/configuration",
        "docs/reference/types",
        "docs/services/index",
    )
)
PICTURES = {
    _ROOT / "docs" / "start" / "retry-light.svg": LIGHT,
    _ROOT / "docs" / "start" / "retry-dark.svg": DARK,
}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description="Write the generated parts of pages.")
    parser.add_argument("--check", action="store_true", help="only list the pages that are out of date")
    is_check = parser.parse_args(arguments).check
    texts = {page: generated(page.read_text()) for page in PAGES}
    texts |= {picture: retry_picture(colors) for picture, colors in PICTURES.items()}
    stale = {file: text for file, text in texts.items() if not file.exists() or file.read_text() != text}
    for page, text in stale.items():
        if not is_check:
            page.write_text(text)
        print(f"{page.name}: {'out of date; run python -m scripts.docs' if is_check else 'written'}")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
