"""BERT: an encoder of transformer blocks with a pooler; imports torch.

J. Devlin et al., "BERT: pre-training of deep bidirectional transformers", arXiv:1810.04805, section
3: base has 12 blocks, width 768, 12 heads; large 24, 1024 and 16. Learned positions (512) and
segments (2), attention in both directions, GELU, normalisation behind each residual sum (A. Vaswani
et al., arXiv:1706.03762), dropout 0.1 (appendix A.2), 30,522 tokens (the uncased vocabulary).
Parameters are those of the published model with its pooler, in its order and names.

DDP requires a gradient of every parameter, and the published model has no output layer. Here the
pooled vector of the first position, which the paper uses for whole sequences, is compared with
every word of the embedding: logits over the vocabulary for the word after the sequence, without
further parameters. All tensors get a gradient, the embedding from both ends. The comparison costs
2 x 30,522 x width FLOPs per sequence (0.2 % of base), a layer of its own without parameters. Masked
words at every position would cost 27 % more in base, and leave the pooler without a gradient.

Rows that a mini-batch does not touch have a zero gradient: positions from 128 on, the second
segment. Initial weights are normal with standard deviation 0.02, the published configuration's.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

_DEVIATION = 0.02
_DROPOUT = 0.1
_EPSILON = 1e-12


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised."""

    def __init__(self, vocabulary: int, positions: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed `[batch, length]` as `[batch, length, width]`; all in the first segment."""
        positions = tokens.new_ones(tokens.shape).cumsum(1) - 1  # [batch, length]: 0, 1, 2, …
        summed = (
            self.word_embeddings(tokens)
            + self.position_embeddings(positions)
            + self.token_type_embeddings(torch.zeros_like(tokens))
        )
        states: Tensor = self.dropout(self.LayerNorm(summed))
        return states


class SelfAttention(nn.Module):
    """Multi-head attention over the whole sequence, without the output projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Map `[batch, length, width]` to the same shape."""
        query, key, value = (
            layer(states).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )  # each [batch, heads, length, width/heads]
        dropout = _DROPOUT if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return mixed.transpose(1, 2).flatten(2)


class Output(nn.Module):
    """End of a sub-block: a projection, dropout, the residual sum, normalisation."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(given, width)
        self.LayerNorm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        """Map `[batch, length, given]` and `[batch, length, width]` to the latter's shape."""
        normalised: Tensor = self.LayerNorm(residual + self.dropout(self.dense(states)))
        return normalised


class Block(nn.Module):
    """Attention, then a position-wise network of two layers, four times as wide inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {"self": SelfAttention(width, heads), "output": Output(width, width)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, 4 * width)})
        self.output = Output(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Map `[batch, length, width]` to the same shape."""
        states = self.attention["output"](self.attention["self"](states), states)
        inner = gelu(self.intermediate["dense"](states))
        return cast(Tensor, self.output(inner, states))


class Bert(nn.Module):
    """Tokens int64 `[batch, length]` to logits `[batch, vocabulary]` of the next word."""

    def __init__(
        self, *, width: int, blocks: int, heads: int, vocabulary: int = 30_522, positions: int = 512
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, positions, width)
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList([Block(width, heads) for _ in range(blocks)])}
        )
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        self.decoder.weight = self.embeddings.word_embeddings.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=_DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        states = self.embeddings(tokens)
        for block in cast(nn.ModuleList, self.encoder["layer"]):
            states = block(states)
        pooled = torch.tanh(self.pooler["dense"](states[:, 0]))  # [batch, width]
        logits: Tensor = self.decoder(pooled)
        return logits


bert_base = partial(Bert, width=768, blocks=12, heads=12)
"""109,482,240 parameters in 199 tensors."""
bert_large = partial(Bert, width=1024, blocks=24, heads=16)
"""335,141,888 parameters in 391 tensors."""
