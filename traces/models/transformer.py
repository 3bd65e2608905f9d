"""Transformers by formula: a decoder's tensors, FLOPs and saved activations, from a dozen numbers.

`transformers.csv` has a line per model; no weights are built. A network is a root unit (embeddings,
last norm, output) and equal blocks. The experts of a block share one matrix per tensor, as in
transformers 5.

FLOPs of a forward pass are 2 per multiply-add of matrix products, 2 N a token for N parameters in
products, and 4 x sequence x heads x head width a token and block for attention, masked or not: A.
Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B; D. Narayanan et al., "Efficient large-scale
language model training on GPU clusters using Megatron-LM", arXiv:2104.04473, section 5.1.

Activations: V. Korthikanti et al., "Reducing activation recomputation in large transformer models",
arXiv:2205.05198, section 4, for any widths, with or without dropout. Checkpointing is

- `full`: a block keeps its input and is computed again;
- `selective`: without flash attention its core is computed again, as there (section 5); with it,
  which keeps no scores, the core's output and every second product's are kept, and all else is
  computed again (TorchTitan's per-operator checkpointing, arXiv:2410.06511).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

Checkpointing = Literal["none", "selective", "full"]
Tensor = tuple[str, tuple[int, ...], int, int]
"""Name, shape, forward FLOPs and outputs per sample of a parameter tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder of equal blocks."""

    blocks: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    """Width of the feed-forward part, or of one expert if there are several."""
    experts: int
    active: int
    """Number of experts that process a token."""
    vocabulary: int
    sequence: int
    """Tokens per sample."""
    positions: int
    """Number of learned positions; 0: none."""
    gated: bool
    """Gate, up and down projections, with separate query, key and value (Llama); otherwise one
    projection for the three, and two layers (GPT-2)."""
    layer_norm: bool
    """Norms with means and biases; otherwise RMS norms."""
    bias: bool
    qk_norm: bool
    tied: bool
    """Whether the output shares the embedding's weights."""
    dropout: bool

    @property
    def _products(self) -> list[tuple[str, int, int, int]]:
        """Name, rows, columns and number of experts per token of a block's products, in order."""
        query, keys, width, inner = self._query, self._keys, self.width, self.inner
        split = [("attn.q", query), ("attn.k", keys), ("attn.v", keys)]
        into = split if self.gated else [("attn.qkv", query + 2 * keys)]
        parts = ("mlp.gate", "mlp.up") if self.gated else ("mlp.fc",)
        return [
            *((name, rows, width, 1) for name, rows in into),
            ("attn.proj", width, query, 1),
            *((name, inner, width, self.active) for name in parts),
            ("mlp.down", width, inner, self.active),
        ]

    @property
    def _query(self) -> int:
        return self.heads * self.head_width

    @property
    def _keys(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def _core(self) -> int:
        """FLOPs of the products with keys and values, per sample and block."""
        return 4 * self.sequence**2 * self._query

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors in forward order. FLOPs of the attention core are at the product before
        it, those of a tied output at the last norm."""
        width, head = self.width, 2 * self.sequence * self.width * self.vocabulary
        stem = "model.layers" if self.gated else "h"
        embedding = "model.embed_tokens" if self.gated else "wte"
        yield f"{embedding}.weight", (self.vocabulary, width), 0, self.sequence * width
        if self.positions:
            yield "wpe.weight", (self.positions, width), 0, self.sequence * width
        block = list(self._block())
        for number in range(self.blocks):
            for name, shape, flops, outputs in block:
                yield f"{stem}.{number}.{name}", shape, flops, outputs
        yield from self._norm("last_norm", width, head * self.tied)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, width), head, self.sequence * self.vocabulary

    def _block(self) -> Iterator[Tensor]:
        yield from self._norm("input_norm", self.width)
        for name, rows, columns, active in self._products:
            if name == "attn.proj" and self.qk_norm:
                yield from self._norm("attn.q_norm", self.head_width)
                yield from self._norm("attn.k_norm", self.head_width)
            stacked = self.experts if name.startswith("mlp") else 1
            flops, outputs = 2 * self.sequence * rows * columns, self.sequence * rows
            core = self._core if name in ("attn.v", "attn.qkv") else 0
            yield (
                f"{name}.weight",
                (stacked * rows, columns),
                active * flops + core,
                active * outputs,
            )
            if self.bias:
                yield f"{name}.bias", (stacked * rows,), 0, 0
            if name == "attn.proj":
                yield from self._norm("post_norm", self.width)
                if self.experts > 1:
                    routed = self.sequence * self.experts
                    yield (
                        "mlp.router.weight",
                        (self.experts, self.width),
                        2 * routed * self.width,
                        routed,
                    )

    def _norm(self, name: str, width: int, flops: int = 0) -> Iterator[Tensor]:
        yield f"{name}.weight", (width,), flops, self.sequence * self.width
        if self.layer_norm:
            yield f"{name}.bias", (width,), 0, 0

    def block_activations(self, checkpointing: Checkpointing, *, flash: bool, nbytes: int) -> int:
        """Return the bytes of activations that a block keeps for the backward pass, per sample;
        `nbytes` per element."""
        width, query, keys = self.width, self._query, self._keys
        if checkpointing == "full":
            return nbytes * self.sequence * width
        if checkpointing == "selective" and flash:
            saved = sum(rows * active for _, rows, _, active in self._products[::2])
            return nbytes * self.sequence * (width + query + saved)
        inner = (4 if self.gated else 2) * self.active * self.inner
        attention = 2 * query + 2 * keys + self.qk_norm * (query + keys)
        masks = 2 * width * self.dropout
        scores = 0
        if checkpointing == "none" and not flash:
            scores = self.heads * self.sequence * (nbytes + self.dropout * (nbytes + 1))
        return self.sequence * (nbytes * (4 * width + attention + inner) + masks + scores)

    def activations(self, checkpointing: Checkpointing, *, flash: bool, nbytes: int) -> int:
        """Return the bytes that all blocks, the embedding and the last norm keep per sample,
        without the output. If blocks are recomputed, one of them is complete."""
        whole = (
            self.block_activations("none", flash=flash, nbytes=nbytes)
            if checkpointing != "none"
            else 0
        )
        blocks = self.blocks * self.block_activations(checkpointing, flash=flash, nbytes=nbytes)
        return blocks + whole + 2 * nbytes * self.sequence * self.width

    def computed_again(self, checkpointing: Checkpointing, *, flash: bool) -> int:
        """Return the forward FLOPs per sample that the backward pass recomputes."""
        if checkpointing == "none":
            return 0
        if checkpointing == "full":
            return self.blocks * sum(flops for _, _, flops, _ in self._block())
        again = self._products[1::2] if flash else []
        products = sum(2 * self.sequence * rows * n * active for _, rows, n, active in again)
        return self.blocks * (products if flash else self._core)


_TRAITS = tuple(field.name for field in fields(Transformer) if field.type == "bool")


def read_transformers() -> Iterator[tuple[dict[str, str], Transformer]]:
    """Yield the rows of `transformers.csv`, each with its network."""
    path = Path(__file__).with_name("transformers.csv")
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            traits = set(row["traits"].split())
            numbers = {f.name: int(row[f.name]) for f in fields(Transformer) if f.type == "int"}
            known = {name: name in traits for name in _TRAITS}
            if traits - set(_TRAITS):
                raise ValueError(f"unknown traits: {traits - set(_TRAITS)}")
            yield row, Transformer(**numbers, **known)  # type: ignore[arg-type]
