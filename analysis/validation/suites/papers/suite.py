"""Do four papers on gradient compression calculate right, and can gcsim explain what they report?

The suite `papers`: statements are recomputed exactly, by the simulator and in closed form. Two are
about measurements: "ten times longer" holds or not by the device's published training rate, and
the 2.5x of gradient sampling is predicted, without any fit, as is the order of six methods.
"""

from __future__ import annotations

from pathlib import Path

from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.suite import Findings
from gcsim.analysis.validation.suites.papers import ce_sgd, order, quantization, sampling, variance


def find() -> Findings:
    """The statements of the four papers, and the speedup that one of them measured."""
    measured = sampling.findings()
    return Findings(
        points=(*measured.points, order.point()),
        orderings=(order.ordering(),),
        statements=(
            *quantization.statements(),
            *variance.statements(),
            *measured.statements,
            *ce_sgd.statements(),
        ),
        factors=measured.factors,
    )


SUITE = suite_of(Path(__file__).parent, "papers", find)
