"""Vision Transformers: an encoder of transformer blocks over patches; imports torch.

A. Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale",
arXiv:2010.11929, section 3.1: patches as words, a class token in front, learned positions,
normalisation in front of each sub-block and behind the last, attention in both directions, GELU,
four times as wide inside, a linear classifier of the class token. Base (table 1): 12 blocks, width
768, 12 heads; patches of 16 x 16, images of 224 x 224: 197 positions, 86,567,656 parameters in 152
tensors.

Parameters have the order and names of huggingface/pytorch-image-models (`vit_base_patch16_224`:
`cls_token`, `pos_embed`, `patch_embed.proj`, `blocks.0.norm1`, `blocks.0.attn.qkv`, …). Initial
weights: normal with standard deviation 0.02, the patches' with that of their fan-in, biases zero.
No dropout.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_DEVIATION = 0.02
_EPSILON = 1e-6


class PatchEmbedding(nn.Module):
    """Images `[batch, 3, height, width]` to one vector per patch, `[batch, patches, width]`."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """Embed patches row by row."""
        patches: Tensor = self.proj(images)
        return patches.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head attention, `[batch, length, width]` to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Let each position attend to all."""
        split = self.qkv(states).unflatten(-1, (3, self._heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width/heads]
        mixed = scaled_dot_product_attention(query, key, value)
        merged: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return merged


class Block(nn.Module):
    """Attention, then two layers at each position, four times as wide inside, each added to its
    input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        fc1, fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.GELU(), fc2=fc2))

    def forward(self, states: Tensor) -> Tensor:
        """Map `[batch, length, width]` to the same shape."""
        states = states + self.attn(self.norm1(states))
        added: Tensor = states + self.mlp(self.norm2(states))
        return added


class VisionTransformer(nn.Module):
    """Images `[batch, 3, side, side]` to logits `[batch, classes]`."""

    def __init__(
        self, *, side: int, patch: int, width: int, blocks: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (side // patch) ** 2, width))
        self.patch_embed = PatchEmbedding(patch, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.head = nn.Linear(width, classes)
        self._draw_weights()

    def forward(self, images: Tensor) -> Tensor:
        """Classify the class token's state after the last block."""
        patches = self.patch_embed(images)
        token = self.cls_token.expand(len(patches), -1, -1)
        states = self.blocks(torch.cat([token, patches], 1) + self.pos_embed)
        logits: Tensor = self.head(self.norm(states)[:, 0])
        return logits

    def _draw_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 4:
                nn.init.normal_(parameter, std=1 / math.sqrt(parameter[0].numel()))
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=_DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


vit_b16 = partial(
    VisionTransformer, side=224, patch=16, width=768, blocks=12, heads=12, classes=1000
)
"""ViT-B/16 for images of 224 x 224 and 1000 classes: 86,567,656 parameters in 152 tensors."""
