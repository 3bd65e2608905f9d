"""What a problem looks like on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import Problem, printable


@given(st.text())
def test_nothing_of_a_text_moves_the_cursor(text: str) -> None:
    shown = printable(text)
    assert shown.encode().decode() == shown
    assert not any(ord(character) < 32 for character in shown if character not in "\n\t")
    assert not any(127 <= ord(character) < 160 for character in shown)


def test_an_error_is_called_one_once() -> None:
    inner = Problem(message="is too small", place="--set x")
    assert str(Problem(message=str(Problem(message="odd")))) == "error: odd"
    assert str(inner) == "--set x: error: is too small"
