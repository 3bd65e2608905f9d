"""Which language models are shipped? A line each; `traces/networks/` builds them.

The length of a sample decides its FLOPs, so it is the one at which a model is commonly trained
and its rates are stated: 35 steps for Zaremba's LSTMs, 128 tokens for BERT, GPT-2's whole context
of 1024. There a training step of GPT-2 takes some 10 s a sample on one CPU core; `gpt2_128` is the
same network on 128 tokens, some 1.3 s, for live gradients without a GPU (positions from 128 on
then have a gradient of zero).
"""

from __future__ import annotations

from gcsim.traces.models.entry import ModelEntry

_ZAREMBA = "W. Zaremba et al., Recurrent neural network regularization, arXiv:1409.2329"
_BERT = "J. Devlin et al., BERT: pre-training of deep bidirectional transformers, arXiv:1810.04805"
_GPT2 = "A. Radford et al., Language models are unsupervised multitask learners, 2019"
_POWERSGD = (
    "T. Vogels et al., PowerSGD, arXiv:1905.13727 (its vocabulary is chosen to fit the size, which "
    "is recalled)"
)


def _tokens(
    build: str,
    title: str,
    sizes: tuple[int, int, int],
    paper: str,
    *,
    name: str = "",
    task: str = "words",
) -> ModelEntry:
    """What `build`, "file:name", builds; sizes: a sample's tokens, their kinds, parameters."""
    length, kinds, parameters = sizes
    return ModelEntry(
        name=name or build.partition(":")[2],
        title=title,
        build=f"gcsim.traces.networks.{build}",
        input_shape=(length,),
        classes=kinds,
        parameters=parameters,
        paper=paper,
        input="tokens",
        task=task,
    )


# fmt: off
LANGUAGE = (
    _tokens("lstm:lstm_ptb_650", "LSTM language model, 2 x 650 (medium)",
            (35, 10_000, 19_780_400), _ZAREMBA),
    _tokens("lstm:lstm_ptb_1500", "LSTM language model, 2 x 1500 (large)",
            (35, 10_000, 66_034_000), _ZAREMBA),
    _tokens("lstm:lstm_wt2_650", "LSTM language model, 3 x 650, tied (PowerSGD's; size recalled)",
            (30, 28_869, 28_949_319), _POWERSGD),
    _tokens("bert:bert_base", "BERT base, with pooler, 128 tokens",
            (128, 30_522, 109_482_240), _BERT),
    _tokens("bert:bert_large", "BERT large, with pooler, 128 tokens",
            (128, 30_522, 335_141_888), _BERT),
    _tokens("gpt2:gpt2", "GPT-2 small, at its whole context of 1024 tokens",
            (1024, 50_257, 124_439_808), _GPT2),
    _tokens("gpt2:gpt2", "GPT-2 small, on 128 tokens (for live gradients on a CPU)",
            (128, 50_257, 124_439_808), _GPT2, name="gpt2_128"),
    _tokens("transformer:transformer_small",
            "GPT-2's blocks over characters (small: for quick trials)",
            (64, 97, 116_608), _GPT2, task="characters"),
)
# fmt: on
