"""Maker of scenarios/catalog/discrepancy.yaml: `python -m tests.benchmarks.discrepancy`."""

from pathlib import Path

from gcsim.analysis.validation.judge import run_suite
from gcsim.analysis.validation.leaving_out import COMMAND, Misses, misses, widths
from gcsim.analysis.validation.registry import chosen
from gcsim.files import write_text
from gcsim.scenarios.uncertainty.discrepancy import FILE, SourceSection, Widths


def file_text(catalogue: Misses, stated: Misses) -> str:
    """Contents of the file."""
    sources = list(dict.fromkeys([*catalogue.sources, *stated.sources]))
    lines = [
        "# Factors on whole steps: docs/model/uncertainty.md. Written by",
        f"# `{COMMAND}`.",
        f"widths: {_flow(widths(catalogue, stated))}",
        "sources:",
    ]
    for name in sources:
        rest = set(sources) - {name}
        own = [each.of([name]) for each in (catalogue, stated)]
        section = SourceSection(
            steps=max(len(each.steps) for each in own),
            gains=max(len(each.gains) for each in own),
            without=widths(catalogue.of(rest), stated.of(rest)),
        )
        lines += [
            f"  {name}:",
            f"    steps: {section.steps}",
            f"    gains: {section.gains}",
            f"    without: {_flow(section.without)}",
        ]
    return "\n".join(lines) + "\n"


def _flow(found: Widths) -> str:
    return "{" + ", ".join(f"{name}: {value:.4g}" for name, value in found) + "}"


def main(path: Path = FILE) -> None:
    """Run all suites, and write the file."""
    reports = [run_suite(suite) for suite in chosen()]
    found = (misses(reports, stated=stated) for stated in (False, True))
    write_text(path, file_text(*found))


if __name__ == "__main__":
    main()
