"""A spreadsheet runs no cell of a CSV, and every other reader gets its values back."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.write import to_csv
from gcsim.csv_text import csv_text
from gcsim.scenarios.result import Result
from tests.analysis.drawn import plain_row

CELLS = st.one_of(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r")),
    st.builds(lambda head, tail: head + tail, st.sampled_from("=+-@\t"), st.text("abc1|!'\"")),
)


@given(st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS})))
def test_no_text_is_a_formula_and_all_text_comes_back(records: list[dict[str, str]]) -> None:
    back = list(csv.DictReader(io.StringIO(csv_text(["a", "b"], records), newline="")))
    assert [line["a"] is not None for line in back] == [True] * len(records)
    for line, record in zip(back, records, strict=True):
        for name, text in record.items():
            cell = line[name]
            assert cell in {text, f"'{text}"}
            assert not re.match(r"[=+@\t-]", cell) or float(text) is not None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_whole(value: float) -> None:
    assert csv_text(["x"], [{"x": value}, {"x": str(value)}]) == f"x\n{value!r}\n{value!r}\n"


def test_a_label_of_a_run_is_no_formula() -> None:
    row = replace(plain_row("none", 0.1), label='=cmd|"/c calc"!A1')
    text = to_csv(Result(scenario={"name": "+1+1"}, provenance={}, rows=(row,), wall={}))
    (line,) = csv.DictReader(io.StringIO(text))
    assert (line["scenario"], line["label"]) == ("'+1+1", "'" + row.label)
