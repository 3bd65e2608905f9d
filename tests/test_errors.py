"""What a problem looks like on a terminal; an error says the same however it travels."""

import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError, Problem, TraceError, printable


@given(st.text())
def test_nothing_of_a_text_moves_the_cursor(text: str) -> None:
    shown = printable(text)
    assert shown.encode().decode() == shown
    assert not any(ord(character) < 32 for character in shown if character not in "\n\t")
    assert not any(127 <= ord(character) < 160 for character in shown)


@pytest.mark.parametrize("kind", [InputError, TraceError])
@pytest.mark.parametrize(
    "copied",
    [lambda error: type(error)(*error.args), copy.copy, lambda e: pickle.loads(pickle.dumps(e))],  # noqa: S301
    ids=["as simpy raises it again", "copy", "pickle"],
)
def test_a_copy_has_the_same_problems(
    kind: type[InputError], copied: Callable[[InputError], InputError]
) -> None:
    """simpy makes `type(error)(*error.args)` of what a process raises."""
    problems = [
        Problem(message="is empty", place="a.yaml:1", hint="write it"), Problem(message="b")
    ]  # fmt: skip
    found = copied(kind(problems))
    assert found.problems == tuple(problems)
    assert str(found) == "a.yaml:1: error: is empty; write it\nerror: b"
