"""Every registered method on kernels: the CPU's payloads and updates, and what the page says."""

import re
from pathlib import Path

import pytest
import torch

from gcsim.compressors.registry import REGISTRY
from tests.compressors.gpu.conftest import ON_HOST, equal
from tests.compressors.gpu.test_methods import exchanged

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
SHAPES = ((30, 70), (0,), (1,))


def named(place: str = "") -> set[str]:
    """The methods that the page's table names, those whose work is done there."""
    section = PAGE.read_text().split("## Which methods stay on the device")[1].split("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    return {name for row in rows if place in row[2] for name in re.findall(r"`(\w+)`", row[1])}


def test_the_page_says_where_each_method_works() -> None:
    assert named() >= set(REGISTRY)


@pytest.mark.long
@pytest.mark.parametrize("name", REGISTRY)
def test_payloads_and_updates_are_the_cpus(name: str) -> None:
    """With default parameters; no more than a header comes to the host, but where the page says."""

    expected, _ = exchanged(name, SHAPES, False)
    found, seen = exchanged(name, SHAPES, True)
    if name == "bingrad_pb":  # the loop's levels hang on the order of sums of float32
        expected, found = ([e for e in each if e.is_floating_point()] for each in (expected, found))
        assert all(
            torch.allclose(f, e, rtol=0, atol=1e-6) for f, e in zip(found, expected, strict=True)
        )
    else:
        assert equal(found, expected)
    assert max(seen, default=0) <= ON_HOST or name in named("host memory")
