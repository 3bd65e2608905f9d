"""YAML with places: YAML 1.2 scalars, and a line and column for everything that is refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.document import LARGEST, read, read_file, read_shipped, scalar, write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # YAML 1.2, section 10.3.2 (core schema); PyYAML's 1.1 rules differ on all but the last.
        ("1e9", 1e9),
        ("off", "off"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("0b11", "0b11"),
        ("2026-01-01", "2026-01-01"),
        ("+12", 12),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E-3", -0.0015),
        ("0x1F", 31),
        ("true", True),
        ("Null", None),
        ("~", None),
        ("-.inf", float("-inf")),
        ("9" * 41, 1e41),  # longer than any whole number here
        ("10 Gbit/s", "10 Gbit/s"),
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    found = read(f"a: {text}", "f").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_quoted_scalars_are_text() -> None:
    assert read("a: '1'\nb: \"true\"\nc: |\n  2\n", "f").data == {"a": "1", "b": "true", "c": "2\n"}


def test_every_value_and_key_has_its_place() -> None:
    document = read("a: 1\nb:\n  c: [x, 2]\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", 2]}}
    assert document.values[("a",)] == "f.yaml:1:4"
    assert document.keys[("b", "c")] == "f.yaml:3:3"
    assert document.values[("b", "c", 1)] == "f.yaml:3:10"
    assert document.place(("b", "missing")) == "f.yaml:2:1"
    assert document.location_of_key(("b",)) == "f.yaml:2:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a: 1\nb: 2\na: 3",
            "f:3:1: error: key 'a' appears here for the second time; first at f:1:1",
        ),
        ("a: &x 1\nb: 2", "f:1:4: error: anchors and aliases are not accepted here"),
        ("a: 1\nb: *x", "f:2:4: error: anchors and aliases are not accepted here"),
        ("a: !!python/name:os.system 1", "f:1:4: error: tags such as"),
        ("a: !mine 1", "f:1:4: error: tags such as '!mine'"),
        ("? [1, 2]\n: 3", "f:1:3: error: a key must be a single word"),
        ("a: [1, 2", "f:1:9: error: while parsing a flow sequence that begins at 1:4; expected"),
        ("a: b: c", "f:1:5: error: mapping values are not allowed here"),
        ("a:\n\tb: 1", "f:2:1: error: a tab indents this line"),
        ("a: 1\n---\nb: 2", "f:2:1: error: expected a single document"),
        ("", "f: error: is empty"),
        ("# only a comment\n", "f: error: is empty"),
        ("a: 1\nb: \x07", "f:2:1: error: character '\\x07' is not allowed"),
        ("[" * 5000, "f: error: is nested too deeply"),
    ],
)
def test_what_is_not_accepted_is_named_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, "f")
    assert str(caught.value).startswith(expected)


def test_all_equal_keys_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        read("a: 1\na: 2\nb: {c: 1, c: 2}", "f")
    assert [problem.place for problem in caught.value.problems] == ["f:2:1", "f:3:11"]


def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_file(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        read_file(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\xfe")
    with pytest.raises(InputError, match=r"binary\.yaml:2:1: error: is not UTF-8 text"):
        read_file(binary)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        read_file(large)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=12
    )
    | st.sampled_from(
        ["1e9", "off", "12:30", "null", "0o17", "0x1F", " x", "a: b", "#", "- a", ".5"]
    )
)
_DATA = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_DATA)
def test_what_is_written_reads_back_to_the_same(data: Any) -> None:
    assert read(write({"data": data}), "f").data == {"data": data}


@given(st.text(max_size=40))
def test_a_scalar_is_a_plain_value_whatever_the_text(text: str) -> None:
    assert isinstance(scalar(text), bool | int | float | str | None)


@given(st.text(st.sampled_from("ab:-[]{},&*!|>'\"%@`#?\n\t 01.~\\"), max_size=60))
def test_any_text_is_read_or_refused_as_input(text: str) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        read(text, "f")
    except InputError as error:
        problems = error.problems
    assert all(problem.place.startswith("f") for problem in problems)


def test_shipped_files_are_read_by_libyaml_as_by_the_parser_in_python() -> None:
    """Every value and every place; PyYAML's own parser, in Python, is the oracle."""
    paths = sorted((Path(__file__).parents[3] / "scenarios").rglob("*.yaml"))
    assert len(paths) >= 18
    for path in paths:
        assert read_shipped(path) == read_file(path), path
