"""Is every suite of the table there, under its own name?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gcsim.analysis.validation.registry import SUITES, chosen
from gcsim.errors import InputError


@pytest.mark.parametrize("name", SUITES)
def test_a_module_holds_the_suite_of_its_line(name: str) -> None:
    (suite,) = chosen([name])
    assert suite.name == name
    assert suite.title
    assert suite.about
    assert suite.bounds
    assert all(0 <= bound.limit <= 1 for bound in suite.bounds)


def test_without_names_all_come_in_the_order_of_the_table() -> None:
    assert [suite.name for suite in chosen()] == list(SUITES)


def test_they_come_once_in_the_order_in_which_they_are_asked_for() -> None:
    first, *_, last = SUITES
    assert [suite.name for suite in chosen([last, first, last])] == [last, first]


def test_an_unknown_suite_is_named_with_a_suggestion() -> None:
    with pytest.raises(InputError) as caught:
        chosen(["papers", "paper"])
    (problem,) = caught.value.problems
    assert "'paper'" in problem.message
    assert "papers" in problem.hint


OWN = """
from gcsim.analysis.validation.suite import Findings, Suite

SUITE = Suite(name="mine", title="Mine", about="", fitted_on="", bounds=(), find=Findings)
NUMBER = 1
"""


def test_a_module_of_ones_own_may_hold_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert [suite.name for suite in chosen(["cluster_of_mine:SUITE", "papers"])] == [
        "mine",
        "papers",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cluster_of_mine:NUMBER", "is a int"),
        ("cluster_of_mine:NOTHING", "NOTHING"),
        ("no_such_module:SUITE", "no_such_module"),
    ],
)
def test_what_holds_no_suite_is_an_error_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    (tmp_path / "cluster_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=said):
        chosen([name])


def test_the_table_alone_imports_no_suite() -> None:
    """So that the command line may offer the names at once."""
    code = (
        "import sys; from gcsim.analysis.validation.registry import SUITES; "
        "print([m for m in sys.modules if m in {v.partition(':')[0] for v in SUITES.values()}], "
        "'torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert found.stdout.strip() == "[] False"
