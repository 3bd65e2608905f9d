"""Lookup of compressors by the names that people write: "Top-K", "DGC 0.1%", "PowerSGD rank 4". A
name may begin or end with the method's most common parameter: a ratio, a rank or bits."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.errors import InputError, did_you_mean
from gcsim.names import compact, pieces, say

ALIASES: dict[str, tuple[str, ...]] = {
    "none": (
        "dense",
        "all-reduce",
        "uncompressed",
        "no compression",
        "baseline",
        "fp32",
        "float32",
    ),
    "randomk": ("rand-k",),
    "gradient_sampling": ("GS",),
    "gradient_sampling_bayes": (
        "gradient sampling with Bayes prior",
        "gradient sampling, Bayes prior",
        "GSB",
    ),
    "random_sampling_bayes": (
        "random sampling with Bayes prior",
        "random sampling, Bayes prior",
        "RSB",
    ),
    "tk_ccd": ("top-k with cyclic coordinate descent",),
    "variance_bounded": ("variance-bounded sparsification",),
    "topk": ("top", "top-k sparsification", "top-k with error feedback"),
    "gtopk": ("global top-k",),
    "dgc": ("deep gradient compression",),
    "threshold": ("threshold-v", "hard threshold"),
    "gradient_dropping": ("GradDrop",),
    "strom": ("Strom's threshold quantisation", "Strom's threshold quantization"),
    "dryden": ("Dryden's adaptive quantisation", "Dryden's adaptive quantization"),
    "variance": ("variance-based compression",),
    "variance_hybrid": ("variance-based compression with a threshold",),
    "fp16": ("half precision", "half", "float16", "fp16 compression"),
    "bf16": ("bfloat16",),
    "fp8": ("float8",),
    "dynamic_8bit": ("8-bit", "8-bit dynamic tree"),
    "terngrad": ("ternary",),
    "natural": ("natural compression",),
    "orq": ("optimal random quantisation", "optimal random quantization"),
    "linear": ("linear quantile quantisation", "linear quantile quantization"),
    "ef_signsgd": ("error feedback signSGD",),
    "signsgd": ("signSGD with majority vote",),
    "signum": ("Signum with majority vote",),
    "ef_block_sgdm": ("dist-EF-blockSGDM", "dist-EF-SGD"),
    "count_sketch": ("FetchSGD",),
    "local_sgd": ("FedAvg", "periodic averaging"),
    "diloco": ("Distributed Low-Communication", "Streaming DiLoCo"),
    "cser": ("communication-efficient SGD with error reset",),
    "csea": ("communication-efficient SGD with error averaging",),
    "cser_pl": ("partial local SGD",),
    "torch_fp16": ("fp16_compress_hook",),
    "torch_bf16": ("bf16_compress_hook",),
    "torch_powersgd": ("powerSGD_hook",),
    "torch_post_local_sgd": ("post_localSGD_hook", "post-local SGD"),
    "torch_quantization_pertensor": ("quantization_pertensor_hook",),
    "torch_quantization_perchannel": ("quantization_perchannel_hook",),
}
_PARAMETERS = (
    ("ratio", r"(?:ratio)?\s*=?\s*(\d+(?:\.\d+)?)\s*(?:%|per ?cent)"),
    ("rank", r"(?:rank|r)[\s=-]*(\d+)"),
    ("bits", r"(\d+)[\s-]*bits?"),
    ("steps", r"(\d+)[\s-]*steps?"),
    ("number", r"(?:ratio[\s=]*)?(\d+(?:\.\d+)?(?:e-\d+)?)"),
)
"""Patterns of the parameter in a name, in the order in which they are tried."""
_PLACES = tuple(
    (key, re.compile(place))
    for key, text in _PARAMETERS
    for place in (rf"[\s,(=@-]{'+' if key == 'number' else '*'}{text}\)?$", rf"^{text}[\s-]+")
)


_COLLECTIVE = re.compile(r"[\s,(-]+(all[\s-]?(?:reduce|gather))\)?$")


def method_named(word: str) -> tuple[str, dict[str, Any]]:
    """Return a compressor's registered name, and the parameters that `word` states; a user's
    `package.module:Class` is returned unchanged. Raises `InputError` if nothing matches."""
    if word in REGISTRY or ":" in word:
        return word, {}
    kind, given = _names().get(compact(word)), {}
    plain = word.strip().lower()
    for key, pattern in () if kind else _PLACES:
        found = pattern.search(plain)
        if found and (kind := _names().get(compact(pattern.sub("", plain)))):
            given = {_key(kind, key): _value(kind, key, float(found[1]))}
            break
    if kind is None and (found := _COLLECTIVE.search(plain)):
        kind = _names().get(compact(_COLLECTIVE.sub("", plain)))
        if kind and compact(found[1]) != compact(compressor_class(kind).about.collective):
            kind = None
    if kind is None:
        own = compact(word)
        like = [kind for kind in REGISTRY if own and _begins(own, (kind, *ALIASES.get(kind, ())))]
        are = "is" if len(like) == 1 else "are"
        hint = (
            f"there {are} {', '.join(sorted(like))}"
            if like
            else did_you_mean(word, REGISTRY, near=70)
        )
        if hint.startswith("known"):
            hint = "gcsim list compressors has all"
        raise InputError(f"unknown compressor {word!r}", hint=hint)
    if kind != word.lower():
        said = (f"{key} {value:g}" for key, value in given.items())
        say("compressor", word, ", ".join((kind, *said)))
    return kind, given


def _begins(word: str, texts: Sequence[str]) -> bool:
    """Whether a word of any of the texts begins with this one."""
    return any(piece.startswith(word) for text in texts for piece in pieces(text))


@functools.cache
def _names() -> dict[str, str]:
    """Return the registered names by their spellings, without blanks and hyphens."""
    return {compact(text): kind for kind in REGISTRY for text in (kind, *ALIASES.get(kind, ()))}


def _key(kind: str, key: str) -> str:
    if key == "number":
        return {"powersgd": "rank", "torch_powersgd": "rank", "qsgd": "steps"}.get(kind, "ratio")
    if key == "steps" and kind != "qsgd":
        return "interval"  # steps between synchronisations
    return "steps" if key == "bits" and kind == "qsgd" else key


def _value(kind: str, key: str, value: float) -> float:
    if key == "ratio":
        return round(value / 100, 12)
    if kind == "qsgd" and key in ("bits", "number"):
        return (1 << int(value) - 1) - 1  # one bit is the sign; steps are whole
    return int(value) if value.is_integer() else value
