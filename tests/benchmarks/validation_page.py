"""docs/validation.md and its figures.

python -m tests.benchmarks.validation_page docs    # docs/validation.md, docs/images/validation/
"""

import sys
from pathlib import Path

from gcsim.analysis.validation.judge import run_suite
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.report.write import figures, page_text
from gcsim.analysis.write import as_text, write_all


def main() -> None:
    """Write the page and its figures into a folder of documents."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {__doc__}")
    docs = Path(sys.argv[1])
    reports = [run_suite(suite) for suite in chosen()]
    text = as_text(lambda found: page_text(found, "images/validation/"))
    write_all(reports, docs / "images" / "validation", figures(reports), ())
    write_all(reports, docs, {"validation.md": text}, ())


if __name__ == "__main__":
    main()
