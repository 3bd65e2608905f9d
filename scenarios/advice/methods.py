"""Which methods are compared when advice is asked for without a file?

Those that are deployed, or that frameworks and well-known papers offer, one setting each: the
method's own default, or what its paper and `docs/compressors.md` use most.
"""

from __future__ import annotations

from collections.abc import Mapping

METHODS: tuple[Mapping[str, object], ...] = (
    {"kind": "none", "label": "dense"},
    {"kind": "fp16", "label": "half precision"},
    {"kind": "powersgd", "label": "PowerSGD rank 4"},
    {"kind": "powersgd", "label": "PowerSGD rank 2", "rank": 2},
    {"kind": "topk", "label": "Top-k 1 %", "ratio": 0.01},
    {"kind": "dgc", "label": "DGC 1 %", "ratio": 0.01},
    {"kind": "qsgd", "label": "QSGD 4 bit", "steps": 7},
    {"kind": "terngrad", "label": "TernGrad"},
    {"kind": "thc", "label": "THC"},
    {"kind": "ef_signsgd", "label": "EF-signSGD"},
    {"kind": "onebit_adam", "label": "1-bit Adam"},
    {"kind": "gradient_sampling", "label": "gradient sampling"},
    {"kind": "cser", "label": "CSER 1/96"},
)

LOCAL: Mapping[str, object] = {"kind": "torch_post_local_sgd", "label": "post-local SGD, 4 steps"}
"""Fewer exchanges in the place of smaller ones: no compressor, a change of the training."""
