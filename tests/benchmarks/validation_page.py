"""docs/validation.md and its figures.

python -m tests.benchmarks.validation_page docs    # docs/validation.md, docs/images/validation/
"""

import sys
from pathlib import Path

from gcsim.analysis.validation.judge import run_suite
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.report.write import figures, page, write_together


def main() -> None:
    """Write the page and its figures into a folder of documents."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {__doc__}")
    docs = Path(sys.argv[1])
    reports = [run_suite(suite) for suite in chosen()]
    text = "\n".join(page(reports, "images/validation/")) + "\n"
    folder = docs / "images" / "validation"
    write_together(
        {docs / "validation.md": text}
        | {folder / name: make for name, make in figures(reports).items()}
    )


if __name__ == "__main__":
    main()
