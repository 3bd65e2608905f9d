"""Recurrent language models with two or three LSTM layers; imports torch.

An embedding, stacked LSTMs, and a linear layer over the vocabulary. Dropout applies from layer to
layer, not from step to step. Sequences start from a state of zeros, and no state passes to the next
mini-batch: a sample is a function of its key alone. Parameters have the order and the names of
PyTorch's example `word_language_model`.

`lstm_ptb_650` and `lstm_ptb_1500` are the medium and the large model of W. Zaremba, I. Sutskever,
O. Vinyals, "Recurrent neural network regularization", arXiv:1409.2329, section 4.1: two layers of
650 or 1500 units, 35 steps, Penn Treebank's 10,000 words, uniform initial weights in ±0.05 or
±0.04, dropout 0.5 or 0.65. They add one bias vector to the gates; torch's LSTM has two (as cuDNN
has), which makes 10,400 or 24,000 parameters more than the equations.

`lstm_wt2_650` is the kind of model that T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD",
arXiv:1905.13727, train on WikiText-2: three layers of 650 units, the embedding's weight also the
output's. Its 28,869 words were chosen for a size of 28,949,319 parameters: neither figure was
checked in the paper.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn


class LstmLanguageModel(nn.Module):
    """Tokens int64 `[batch, length]` to logits `[batch, length, vocabulary]` of the next ones."""

    def __init__(
        self, *, vocabulary: int, width: int, layers: int, dropout: float, tied: bool = False
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        states, _ = self.rnn(self.drop(self.encoder(tokens)))  # [batch, length, width]
        logits: Tensor = self.decoder(self.drop(states))
        return logits


def _zaremba(width: int, dropout: float, bound: float) -> nn.Module:
    model = LstmLanguageModel(vocabulary=10_000, width=width, layers=2, dropout=dropout)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -bound, bound)
    return model


lstm_ptb_650 = partial(_zaremba, 650, 0.5, 0.05)
"""Zaremba's medium model: 19,780,400 parameters in 11 tensors."""
lstm_ptb_1500 = partial(_zaremba, 1500, 0.65, 0.04)
"""Zaremba's large model: 66,034,000 parameters in 11 tensors."""


def lstm_wt2_650() -> nn.Module:
    """Three layers, tied: 28,949,319 parameters in 14 tensors. Initial weights as in
    `word_language_model`: ±0.1 in the embedding, zero in the output's bias, ±1 / sqrt(650) (torch's
    own) in the LSTM."""
    model = LstmLanguageModel(vocabulary=28_869, width=650, layers=3, dropout=0.5, tied=True)
    nn.init.uniform_(model.encoder.weight, -0.1, 0.1)
    nn.init.zeros_(model.decoder.bias)
    return model
