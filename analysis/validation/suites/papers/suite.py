"""The suite `papers`: statements of four papers, recomputed with the simulator and in closed form.

Three statements concern measurements: "ten times longer" depends on the device's published training
rate; two speedups of gradient sampling and the order of six methods are predicted without fit.
"""

from __future__ import annotations

from pathlib import Path

from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.suite import Findings
from gcsim.analysis.validation.suites.papers import ce_sgd, order, quantization, variance


def find() -> Findings:
    """Return the papers' statements, and the speedups that one of them measured."""
    return Findings(
        points=(order.point(),),
        orderings=order.orderings(),
        statements=(*quantization.statements(), *variance.statements(), *ce_sgd.statements()),
    )


SUITE = suite_of(Path(__file__).parent, "papers", find)
