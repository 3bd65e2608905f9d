"""Small transformers for quick trials: GPT-2's blocks over characters; imports torch.

Small: two blocks of width 64 with four heads, 64 positions, 97 characters: 116,608 parameters in 29
tensors, 15.6 million FLOPs a sample. Tiny, for whole trainings: one block of width 32 with two
heads, 32 positions: 20,000 parameters in 17 tensors. The output has a weight of its own, so that
every layer is used once and the second moments over samples have a closed form in each. Blocks and
initial weights are GPT-2's (`networks/gpt2.py`).
"""

from __future__ import annotations

from torch import nn

from gcsim.traces.networks.gpt2 import Gpt2


def transformer_small() -> nn.Module:
    """A transformer for 64 of the 97 characters of `tasks/text.py`."""
    return Gpt2(vocabulary=97, positions=64, width=64, blocks=2, heads=4, tied=False)


def transformer_tiny() -> nn.Module:
    """A transformer for 32 of them, for whole trainings on a CPU."""
    return Gpt2(vocabulary=97, positions=32, width=32, blocks=1, heads=2, tied=False)
