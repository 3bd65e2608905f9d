"""Transfer times of a gradient at 10 Gbit/s: Table 1 of the gradient quantization paper.

The paper's times are those of one message over one hop. A ring takes 2 (p - 1) / p times as long by
the formula of the variance-based paper, here with that paper's 16 workers.

Source: A. Xu, Z. Huo, H. Huang, "Optimal gradient quantization condition for
communication-efficient distributed training", arXiv:2002.11082, Table 1.
"""

from __future__ import annotations

from fractions import Fraction

from gcsim.analysis.validation.suite import Statement
from gcsim.analysis.validation.suites.papers import ring as rings

_SOURCE = "Xu, Huo and Huang, arXiv:2002.11082, Table 1"
_RING_SOURCE = "Tsuzuku, Imachi and Akiba, arXiv:1802.06058, sec. 5, T_r = 2 (p - 1) N s beta / p"
_RATE = "10 Gbit/s"
_BITS_PER_SECOND = Fraction(10**10)
_WORKERS = 16
_ORIGINAL_ALEXNET = 60_965_224
"""Parameters of the two-tower network of Krizhevsky, Sutskever and Hinton 2012, by layer:
34,944 + 307,456 + 885,120 + 663,936 + 442,624 + 37,752,832 + 16,781,312 + 4,097,000."""

_TABLE = (
    ("AlexNet", "alexnet", 195),
    ("VGG-19", "vgg19", 460),
    ("DenseNet-161", "densenet161", 92),
    ("GoogLeNet", "googlenet_aux", 44),
    ("ResNet-50", "resnet50", 82),
)
"""The paper's name, gcsim's name, and the paper's milliseconds. Its GoogLeNet has 13.0 million
parameters, with the inner classifiers of training."""


def statements() -> list[Statement]:
    """Return the times of one hop and of a ring for each model, in milliseconds."""
    return [*(_one_hop(*row) for row in _TABLE), *(_ring(name, model) for name, model, _ in _TABLE)]


def _one_hop(name: str, model: str, stated: int) -> Statement:
    elements = rings.parameters_of(model)
    return Statement(
        name=f"{name}, one hop at 10 Gbit/s",
        source=_SOURCE,
        unit="ms",
        stated=stated,
        digit=1,
        computed=float(1000 * rings.hop(rings.FLOAT32 * elements, rings.ideal_link(_RATE))),
        formula=float(1000 * Fraction(32 * elements) / _BITS_PER_SECOND),
        wrong=model == "googlenet_aux",
        note=_note(model, stated),
    )


def _note(model: str, stated: int) -> str:
    """Explain a time that does not follow from the paper's own number of parameters."""

    def takes(elements: int) -> str:
        milliseconds = 32 * elements / float(_BITS_PER_SECOND) * 1000
        return f"{elements / 1e6:.2f} million take {milliseconds:.1f} ms"

    if model == "alexnet":
        return (
            f"cut off, not rounded: {takes(rings.parameters_of(model))}; the original in two "
            f"towers, {takes(_ORIGINAL_ALEXNET)}"
        )
    if model == "googlenet_aux":
        needed = stated / 1000 * float(_BITS_PER_SECOND) / 32
        return (
            f"{takes(rings.parameters_of(model))}; without inner classifiers, "
            f"{takes(rings.parameters_of('googlenet'))}; {stated} ms are {needed / 1e6:.2f} "
            "million, and the table itself counts 13.0"
        )
    return ""


def _ring(name: str, model: str) -> Statement:
    elements = rings.parameters_of(model)
    ideal = Fraction(2 * (_WORKERS - 1) * 32 * elements, _WORKERS) / _BITS_PER_SECOND
    return Statement(
        name=f"{name}, ring of {_WORKERS} workers",
        source=_RING_SOURCE,
        unit="ms",
        stated=round(float(1000 * ideal), 2),
        digit=0.01,
        computed=float(1000 * rings.ring(elements, _WORKERS, rings.ideal_link(_RATE))),
        formula=float(1000 * rings.ring_in_closed_form(elements, _WORKERS, _BITS_PER_SECOND)),
    )
