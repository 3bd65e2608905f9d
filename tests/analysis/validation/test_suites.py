"""Is every suite of the table there, under its own name?"""

import pytest

from gcsim.analysis.validation.registry import SUITES, chosen
from gcsim.errors import InputError
from tests.process import printed


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


def test_the_table_alone_imports_no_suite() -> None:
    """So that the command line may offer the names at once."""
    code = (
        "import sys; from gcsim.analysis.validation.registry import SUITES; "
        "print([m for m in sys.modules if '.suites.' in m], "
        "'torch' in sys.modules)"
    )
    assert printed("-c", code) == "[] False\n"
