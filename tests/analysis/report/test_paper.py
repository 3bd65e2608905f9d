"""Tables and references for a paper: whole, escaped, and each method's own."""

import re
from dataclasses import replace

import pytest

from gcsim.analysis.report.paper import bibtex, latex, markdown, reference
from gcsim.analysis.report.selection import largest_verdict
from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.scenarios.result import Result


@pytest.mark.parametrize("kind", [kind for kind in REGISTRY if not kind.startswith("torch_")])
def test_every_method_of_a_paper_has_its_reference(kind: str) -> None:
    """The year and the number at arXiv are those that the registry's own citation has."""
    paper, found = compressor_class(kind).about.paper, reference(kind)
    if kind == "none":
        assert not found
        return
    assert re.match(rf"@misc{{{kind},\n  author = {{[A-Z]", found)
    for number in re.findall(r"arXiv:([\d.]+)", paper):
        if kind not in {"threshold", "fp16"}:  # which name two papers
            assert f"eprint = {{{number}}}" in found
    assert found.count("{") == found.count("}")


def test_tables_have_a_line_per_method_and_cite_what_the_references_have(result: Result) -> None:
    rows = [replace(row, label=f"{row.label} 1 % a_b & c") for row in result.rows]
    result = replace(result, rows=tuple(rows))
    count = len(largest_verdict(result).rows)
    text = latex(result)
    assert text.count(r"\\") == count + 1
    assert text.count(r" 1 \% a\_b \& c") == count
    cited = set(re.findall(r"\\cite{(\w+)}", text))
    assert cited <= set(re.findall(r"@misc{(\w+),", bibtex(result)))
    assert sum(line.startswith("| ") for line in markdown(result).splitlines()) == count + 1
