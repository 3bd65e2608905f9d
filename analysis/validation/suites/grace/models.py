"""Which tensors did the networks of GRACE's runs have? Shapes in TensorFlow's order, and samples.

| model               | code                                                               | batch |
|---------------------|--------------------------------------------------------------------|-------|
| unet_dagm           | NVIDIA UNet Industrial, tinyUNet, 512 x 512, one channel           | 2     |
| resnet50            | tf_cnn_benchmarks, 1001 classes                                    | 128   |
| resnet20_v2_cifar10 | tf_cnn_benchmarks, 11 classes                                      | 256   |
| lstm_ptb_grace      | tensorpack's PTB-LSTM, 2 x 650, 35 steps; without the embedding    | 20    |
| ncf_ml20m           | NVIDIA NCF, 64 factors, layers 256-256-128-64                      | -     |

Sum of the elements and number of the tensors are checked by the bytes that were counted. The
embedding of the LSTM is not compressed: its gradient is gathered as it is, 20 x 35 rows of 650 and
their numbers.

Sources: sands-lab/grace-benchmarks TF_scripts.sh (command lines, batches) and its models;
NVIDIA/DeepLearningExamples TensorFlow/Segmentation/UNet_Industrial/model/blocks. The script has no
line for ResNet-50: 128 images follow from how the times of dense, top-k, random-k, QSGD and
TernGrad differ between 1 and 10 Gbit/s (an inference from the data). ResNet-20: the sizes of its
short tensors (biases, normalisation) were found from the bytes counted for shares of 0.01 to 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from gcsim.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One trainable variable."""

    shape: tuple[int, ...]
    uses: int = 1
    """How often an element is used for a sample: positions of a convolution's output, steps of
    a sequence."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def forward_flops(self) -> int:
        """Of its layer, a sample; of vectors (biases, normalisation) none are counted."""
        return 2 * self.elements * self.uses if len(self.shape) > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is known of a model: its tensors in forward order."""

    title: str
    batch: int | None
    """Samples a worker and iteration; None: not known."""
    tensors: tuple[Tensor, ...]
    samples_counted: int = 1
    """Samples of each one that the release's rate counts: a batch where it counts iterations."""
    sparse_bytes: int = 0
    """Of a gradient that every method gathers uncompressed."""

    @property
    def samples(self) -> int:
        """`batch` of a network of which it is known; raises `InternalError` where it is not."""
        if self.batch is None:
            raise InternalError(f"nobody knows how many samples {self.title} had in a batch")
        return self.batch

    @property
    def elements(self) -> int:
        """Of all tensors."""
        return sum(tensor.elements for tensor in self.tensors)


@cache
def networks() -> dict[str, Network]:
    """By the name that the data use; models without a known list of tensors are not there."""
    return {
        "unet_dagm": Network(title="UNet", batch=2, tensors=_unet()),
        "resnet50": Network(title="ResNet-50", batch=128, tensors=_resnet50()),
        "resnet20_v2_cifar10": Network(title="ResNet-20", batch=256, tensors=_resnet20()),
        "lstm_ptb_grace": Network(
            title="LSTM",
            batch=20,
            tensors=_lstm(),
            samples_counted=20,
            sparse_bytes=20 * 35 * (650 + 1) * 4,
        ),
        "ncf_ml20m": Network(title="NCF", batch=None, tensors=_ncf()),
    }


def _conv(kernel: int, inputs: int, outputs: int, side: int, short: int = 1) -> list[Tensor]:
    """A convolution and `short` tensors of one number a channel: bias, or scale and shift."""
    weights = Tensor(shape=(kernel, kernel, inputs, outputs), uses=side * side)
    return [weights, *[Tensor(shape=(outputs,))] * short]


def _unet() -> tuple[Tensor, ...]:
    found = _conv(3, 1, 32, 512) + _conv(3, 32, 32, 512)
    before = 32
    for filters, side in ((32, 256), (64, 128), (128, 64)):
        found += _conv(3, before, filters, side) + _conv(3, filters, filters, side)
        before = filters
    found += _conv(3, 128, 256, 32) + _conv(3, 256, 256, 32) + _up(256, 128, 32)
    before = 128
    for filters, side in ((128, 64), (64, 128), (32, 256)):
        half = filters // 2
        found += _conv(3, before + filters, filters, side) + _conv(3, filters, half, side)
        found += _up(half, half, side)
        before = half
    found += _conv(3, 16 + 32, 32, 512) + _conv(3, 32, 32, 512) + _conv(1, 32, 1, 512)
    return tuple(found)


def _up(inputs: int, outputs: int, side: int) -> list[Tensor]:
    """A transposed convolution of 2 x 2 with bias."""
    return [Tensor(shape=(2, 2, outputs, inputs), uses=side * side), Tensor(shape=(outputs,))]


def _resnet50() -> tuple[Tensor, ...]:
    found = _conv(7, 3, 64, 112, short=2)
    before = 64
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            if block == 0:
                found += _conv(1, before, 4 * width, side, short=2)
            found += _conv(1, before, width, side, short=2)
            found += _conv(3, width, width, side, short=2)
            found += _conv(1, width, 4 * width, side, short=2)
            before = 4 * width
    found += [Tensor(shape=(2048, 1001)), Tensor(shape=(1001,))]
    return tuple(found)


def _resnet20() -> tuple[Tensor, ...]:
    found = _conv(3, 3, 16, 32, short=2)
    before = 16
    for width, side in ((16, 32), (32, 16), (64, 8)):
        for _ in range(3):
            found += [Tensor(shape=(before,))]
            found += _conv(3, before, width, side) + _conv(3, width, width, side)
            before = width
    found += [Tensor(shape=(64,)), Tensor(shape=(64, 11)), Tensor(shape=(11,))]
    return tuple(found)


def _lstm() -> tuple[Tensor, ...]:
    layer = [Tensor(shape=(1300, 2600), uses=35), Tensor(shape=(2600,))]
    return (*layer, *layer, Tensor(shape=(650, 10_000), uses=35), Tensor(shape=(10_000,)))


def _ncf() -> tuple[Tensor, ...]:
    shapes = ((138_493, 192), (26_744, 192), (256, 256), (256,), (256, 128), (128,), (128, 64))
    return tuple(Tensor(shape=shape) for shape in (*shapes, (64,), (128, 1), (1,)))
