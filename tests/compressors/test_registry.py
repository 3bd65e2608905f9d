"""The table of compressors: names, parameters, families, and the page that is made from it."""

from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import pytest

from gcsim.compressors.base import Family
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.errors import InputError
from tests.benchmarks.gallery import page


@pytest.mark.parametrize("name", REGISTRY)
def test_an_unknown_parameter_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has no parameter 'colour'"):
        check_parameters(name, {"colour": 1})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("linear", [{"levels": 2}, {"bucket": 65536}, {"clip": -1.0}, {"refine": True}]),
        ("orq", [{"levels": 4}, {"bucket": 0}, {"clip": 0.0}, {"refine": "much"}]),
        ("bingrad_b", [{"bucket": 0}, {"bucket": 65536}, {"clip": 0.0}]),
        ("bingrad_b", [{"levels": "all"}]),
        ("bingrad_pb", [{"bucket": 0}, {"bucket": 65536}, {"levels": 2}]),
        ("onebit_sgd", [{"error_feedback": 1}, {"momentum": 0.9}]),
        ("variance_hybrid", [{"tau": 0.0}, {"alpha": -1.0}, {"zeta": 1.5}]),
        ("ce_sgd", [{"speculative": -0.1}, {"speculative": 1.1}]),
        ("ce_sgd", [{"unsent_limit": 255}, {"levels": 0}]),
        ("count_sketch", [{"rows": 0}, {"column_ratio": 0.0}, {"momentum": 1.0}, {"blocks": 0}]),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(
    name: str, wrong: list[dict[str, Any]]
) -> None:
    for given in wrong:
        with pytest.raises(InputError, match=next(iter(given))):
            check_parameters(name, given)


NUMBERS = [
    (name, key, field.default)
    for name in REGISTRY
    for key, field in compressor_class(name).Parameters.model_fields.items()
    if type(field.default) in (int, float)
]


@pytest.mark.parametrize(("name", "key", "number"), NUMBERS)
def test_true_and_text_are_no_numbers(name: str, key: str, number: float) -> None:
    """Types are strict as everywhere in a scenario; the number itself is one."""
    assert getattr(check_parameters(name, {key: number}), key) == number
    for wrong in (True, str(number)):
        with pytest.raises(InputError) as caught:
            check_parameters(name, {key: wrong})
        (problem,) = caught.value.problems
        assert f"{name}.{key} = {wrong!r}: input should be" in problem.message


def test_other_types_are_meant_too() -> None:
    """A number is no truth value; a hint says what to write."""
    with pytest.raises(InputError, match="should be a valid boolean"):
        check_parameters("thc", {"error_feedback": 1})
    with pytest.raises(InputError, match=r"0\.01'.*; write 0\.01, without quotes"):
        check_parameters("topk", {"ratio": "0.01"})


def test_a_family_is_one_stretch_of_the_table_in_the_families_order() -> None:
    found = [family for family, _ in groupby(compressor_class(n).about.family for n in REGISTRY)]
    assert found == [family for family in get_args(Family) if family in found]


def test_classes_are_registered_once() -> None:
    classes = [compressor_class(name) for name in REGISTRY]
    assert len(set(classes)) == len(classes)


def test_the_page_of_compressors_is_that_of_the_registry() -> None:
    stored = Path(__file__).parents[2] / "docs" / "compressors.md"
    assert stored.read_text(encoding="utf-8") == page(), "run: make gallery"


def test_a_module_that_does_not_import_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match=r"cannot import compressor .no_such\.module:Thing"):
        compressor_class("no_such.module:Thing")


def test_a_class_that_is_no_compressor_is_refused() -> None:
    with pytest.raises(InputError, match=r"is not a subclass of gcsim\.Compressor"):
        compressor_class("pathlib:Path")


@pytest.mark.parametrize(
    ("name", "given", "memory"),
    [
        ("none", {}, "none"),
        ("randomk", {}, "none"),
        ("randomk", {"error_feedback": True}, "residual (n)"),
        ("topk", {}, "residual (n)"),
    ],
)
def test_memory_is_that_of_the_chosen_parameters(
    name: str, given: dict[str, Any], memory: str
) -> None:
    assert compressor_class(name).memory(check_parameters(name, given)) == memory
