"""Which language models are shipped? One entry each, plain data; `networks_*.py` build them.

The length of a sample decides its FLOPs, so it is the one at which a model is commonly trained
and its rates are stated: 35 steps for Zaremba's LSTMs, 128 tokens for BERT, GPT-2's whole context
of 1024. There a training step of GPT-2 takes some 10 s a sample on one CPU core; `gpt2_128` is the
same network on 128 tokens, some 1.3 s, for live gradients without a GPU (positions from 128 on
then have a gradient of zero).
"""

from __future__ import annotations

from gcsim.traces.model_entry import ModelEntry

_ZAREMBA = "W. Zaremba et al., Recurrent neural network regularization, arXiv:1409.2329"
_BERT = "J. Devlin et al., BERT: pre-training of deep bidirectional transformers, arXiv:1810.04805"
_GPT2 = "A. Radford et al., Language models are unsupervised multitask learners, 2019"
LANGUAGE = (
    ModelEntry(
        name="lstm_ptb_650",
        title="LSTM language model, 2 x 650 (medium)",
        build="gcsim.traces.networks_lstm:lstm_ptb_650",
        input_shape=(35,),
        classes=10_000,
        parameters=19_780_400,
        paper=_ZAREMBA,
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="lstm_ptb_1500",
        title="LSTM language model, 2 x 1500 (large)",
        build="gcsim.traces.networks_lstm:lstm_ptb_1500",
        input_shape=(35,),
        classes=10_000,
        parameters=66_034_000,
        paper=_ZAREMBA,
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="lstm_wt2_650",
        title="LSTM language model, 3 x 650, tied (PowerSGD's; size recalled)",
        build="gcsim.traces.networks_lstm:lstm_wt2_650",
        input_shape=(30,),
        classes=28_869,
        parameters=28_949_319,
        paper="T. Vogels et al., PowerSGD, arXiv:1905.13727 (its vocabulary is chosen to fit the "
        "size, which is recalled)",
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="bert_base",
        title="BERT base, with pooler, 128 tokens",
        build="gcsim.traces.networks_bert:bert_base",
        input_shape=(128,),
        classes=30_522,
        parameters=109_482_240,
        paper=_BERT,
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="bert_large",
        title="BERT large, with pooler, 128 tokens",
        build="gcsim.traces.networks_bert:bert_large",
        input_shape=(128,),
        classes=30_522,
        parameters=335_141_888,
        paper=_BERT,
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="gpt2",
        title="GPT-2 small, at its whole context of 1024 tokens",
        build="gcsim.traces.networks_gpt2:gpt2",
        input_shape=(1024,),
        classes=50_257,
        parameters=124_439_808,
        paper=_GPT2,
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="gpt2_128",
        title="GPT-2 small, on 128 tokens (for live gradients on a CPU)",
        build="gcsim.traces.networks_gpt2:gpt2",
        input_shape=(128,),
        classes=50_257,
        parameters=124_439_808,
        paper=_GPT2,
        input="tokens",
        task="words",
    ),
    ModelEntry(
        name="transformer_small",
        title="GPT-2's blocks over characters (small: for quick trials)",
        build="gcsim.traces.networks_transformer:transformer_small",
        input_shape=(64,),
        classes=97,
        parameters=116_608,
        paper=_GPT2,
        input="tokens",
        task="characters",
    ),
)
