"""Words that a docstring of the product may begin with."""

import ast

import pytest

from tests.docstrings import docstrings, wrong


@pytest.mark.parametrize(
    "text",
    [
        "What a run sends.", "By tensor: norms.", "Does it pay? It may.", "How: see above.",
        "Why it died.", "In order.", "Beside `path`.", "Held until then.",
    ],
)  # fmt: skip
def test_a_relative_word_an_adverbial_or_a_question_is_refused(text: str) -> None:
    assert wrong(text)


@pytest.mark.parametrize(
    "text", ["Bytes by tensor.", "Replace `?NAME`.", "Whatever is left.", "Held-out loss."]
)
def test_a_subject_is_taken(text: str) -> None:
    assert not wrong(text)


def test_docstrings_of_attributes_are_read() -> None:
    tree = ast.parse('class A:\n    """One."""\n    x: int = 1\n    """Two."""\n')
    assert list(docstrings(tree)) == [(2, "One."), (4, "Two.")]
