"""GPT-2: a decoder of transformer blocks, its output tied to its embedding; imports torch.

A. Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3, on A.
Radford et al., "Improving language understanding by generative pre-training", 2018: learned
positions, layer normalisation in front of each sub-block and behind the last, masked attention,
GELU in its tanh form, four times as wide inside. Small: 12 blocks, width 768, 12 heads, 1024
positions, 50,257 tokens: 124,439,808 parameters in 148 tensors.

Parameters have the published model's order and names (`wte`, `wpe`, `h.0.ln_1`, `h.0.attn.c_attn`,
…); matrices are stored as torch's `Linear` does, `[out, in]`, where the published ones are
transposed. The embedding is registered first, so its gradient, shared with the output, is ready
last.

Initial weights: normal with standard deviation 0.02 (2018, section 4.1), biases zero; those that
end in the residual sum divided by the square root of the number of such layers, twice that of
blocks (2019, section 2.3). No dropout: the paper's models underfit their text.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_DEVIATION = 0.02


class Attention(nn.Module):
    """Masked multi-head attention, `[batch, length, width]` to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Let each position attend to itself and to earlier ones."""
        batch, length, width = states.shape
        split = self.c_attn(states).view(batch, length, 3, self._heads, width // self._heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width/heads]
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        merged: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return merged


class Block(nn.Module):
    """Attention, then two layers at each position, four times as wide inside, each added to its
    input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        c_fc, c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        gelu = nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(OrderedDict(c_fc=c_fc, gelu=gelu, c_proj=c_proj))

    def forward(self, states: Tensor) -> Tensor:
        """Map `[batch, length, width]` to the same shape."""
        states = states + self.attn(self.ln_1(states))
        added: Tensor = states + self.mlp(self.ln_2(states))
        return added


class Gpt2(nn.Module):
    """Tokens int64 `[batch, length]`, length up to `positions`, to logits
    `[batch, length, vocabulary]` of the next ones."""

    def __init__(
        self,
        *,
        vocabulary: int,
        positions: int,
        width: int,
        blocks: int,
        heads: int,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight
        self._draw_weights()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        positions = tokens.new_ones(tokens.shape).cumsum(1) - 1  # [batch, length]: 0, 1, 2, …
        states = self.wte(tokens) + self.wpe(positions)
        for block in self.h:
            states = block(states)
        logits: Tensor = self.lm_head(self.ln_f(states))
        return logits

    def _draw_weights(self) -> None:
        residual = _DEVIATION / math.sqrt(2 * len(self.h))
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                ends = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=residual if ends else _DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


gpt2 = partial(Gpt2, vocabulary=50_257, positions=1024, width=768, blocks=12, heads=12)
"""GPT-2 small: 124,439,808 parameters in 148 tensors."""
_characters = partial(Gpt2, vocabulary=97, tied=False)
transformer_small = partial(_characters, positions=64, width=64, blocks=2, heads=4)
"""A transformer for 64 of the 97 characters of `tasks/text.py`."""
_tiny = partial(_characters, positions=32, blocks=1, heads=2)
transformer_tiny = partial(_tiny, width=32)
"""A transformer for 32 of them, for whole trainings on a CPU."""
transformer_tiny_x2 = partial(_tiny, width=64)
"""`transformer_tiny` at twice the width: 64,576 parameters."""
transformer_tiny_x4 = partial(_tiny, width=128)
"""`transformer_tiny` at four times the width: 227,456 parameters."""
