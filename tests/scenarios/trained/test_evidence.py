"""What is known to train: published results, and trainings that come with gcsim."""

from __future__ import annotations

import pytest

from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.trained.evidence import evidence, evidence_of, published


def test_rows_name_methods_parameters_and_their_sources() -> None:
    for row in published():
        assert row.evidence.steps_vs_dense >= 1
        assert "arXiv:" in row.evidence.source
        for kind in row.methods:
            assert kind in REGISTRY
            names = check_parameters(kind, {}).model_dump().keys()
            assert {name for name, _, _ in row.conditions} <= names


@pytest.mark.parametrize(
    ("kind", "given", "field", "known"),
    [
        ("dgc", {"ratio": 0.01}, "images", True),  # 0.001 was shown: milder
        ("dgc", {"ratio": 0.0001}, "images", False),
        ("powersgd", {"rank": 2}, "images", True),
        ("powersgd", {"rank": 2}, "text", False),  # perplexity 93 for 91
        ("powersgd", {"rank": 4}, "text", True),
        ("onebit_adam", {}, "images", False),
        ("gradient_sampling", {}, "images", False),
    ],
)
def test_what_was_shown_covers_what_is_milder_in_its_field(
    kind: str, given: dict[str, float], field: str, known: bool
) -> None:
    assert (evidence(kind, given, field) is not None) == known  # type: ignore[arg-type]


def test_a_training_that_comes_with_gcsim_is_evidence_in_its_field() -> None:
    """A threshold reaches the target on digits with all seeds, and on characters not with all.
    Top-k's hundredth needs more steps than dense training on digits, and is too short to tell on
    characters."""
    found = evidence("threshold", {}, "images")
    assert found is not None
    assert found.source == "gcsim train digits_8"
    assert evidence("threshold", {}, "text") is None
    assert evidence("threshold", {}, None) is None
    sparse = evidence("topk", {"ratio": 0.01}, "images")
    assert sparse is not None
    assert sparse.steps_vs_dense > 1
    assert evidence("topk", {"ratio": 0.01}, "text") is None


def test_a_scenarios_methods_are_asked_by_label() -> None:
    scenario = load_scenario("lenet_2node", ["compressors=[none, {kind: dgc, label: x}, terngrad]"])
    assert list(evidence_of(scenario, ["x"])) == ["x"]
