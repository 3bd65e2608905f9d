"""Which image models are shipped? A line each; `traces/networks/` builds them.

The weight of inner classifiers' losses: in GoogLeNet 0.3 (arXiv:1409.4842, section 5); in Inception
V3 0.4, which its paper does not tell: from the authors' code (tensorflow/models,
inception/inception_model.py); tf_cnn_benchmarks (models/model.py) has the same.
"""

from __future__ import annotations

from typing import Any

from gcsim.traces.models.entry import ModelEntry

_IMAGENET, _CIFAR = (3, 224, 224), (3, 32, 32)
_TORCHVISION = "torchvision's layout"
_RESNET = "K. He et al., Deep residual learning for image recognition, arXiv:1512.03385"
_RESNET_TV = f"{_RESNET}; {_TORCHVISION}"
_RESNET_PC = f"{_RESNET}; pytorch-cifar's layout"
_RESNET_42 = f"{_RESNET}, section 4.2; shortcuts without parameters"
_VGG = (
    "K. Simonyan, A. Zisserman, Very deep convolutional networks for large-scale image "
    "recognition, arXiv:1409.1556"
)
_VGG_TV = f"{_VGG}; {_TORCHVISION}"
_VGG_PC = f"{_VGG}; pytorch-cifar's layout"
_GOOGLENET = (
    "C. Szegedy et al., Going deeper with convolutions, arXiv:1409.4842; with batch norm, in "
    + _TORCHVISION
)
_INCEPTION = (
    "C. Szegedy et al., Rethinking the Inception architecture for computer vision, "
    f"arXiv:1512.00567; {_TORCHVISION}"
)
_DENSENET = (
    f"G. Huang et al., Densely connected convolutional networks, arXiv:1608.06993; {_TORCHVISION}"
)
_KRIZHEVSKY = (
    "A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, "
    f"arXiv:1404.5997; {_TORCHVISION}"
)
_LECUN = (
    "Y. LeCun et al., Gradient-based learning applied to document recognition, "
    "Proc. IEEE 86(11), 1998"
)
_SANDLER = (
    "M. Sandler et al., MobileNetV2: inverted residuals and linear bottlenecks, "
    f"arXiv:1801.04381; {_TORCHVISION}"
)
_TSUZUKU = (
    "Y. Tsuzuku et al., Variance-based gradient compression for efficient distributed deep "
    "learning, arXiv:1802.06058, appendix D"
)
_NARROW = "after Y. Tsuzuku et al., arXiv:1802.06058, appendix D, with a sixteenth of the channels"
_WIDE = "S. Zagoruyko, N. Komodakis, Wide residual networks, arXiv:1605.07146; without dropout"


def _images(
    file: str, name: str, title: str, parameters: int, paper: str, **other: Any
) -> ModelEntry:
    """The model that `name` in `networks/<file>.py` builds; by default of ImageNet."""
    takes: dict[str, Any] = {"input_shape": _IMAGENET, "classes": 1000} | other
    return ModelEntry(
        name=name,
        title=title,
        build=f"gcsim.traces.networks.{file}:{name}",
        parameters=parameters,
        paper=paper,
        **takes,
    )


def _cifar(file: str, name: str, title: str, parameters: int, paper: str) -> ModelEntry:
    return _images(file, name, title, parameters, paper, input_shape=_CIFAR, classes=10)


# fmt: off
VISION = (
    _images("small", "alexnet", "AlexNet, one tower", 61_100_840, _KRIZHEVSKY),
    _images("small", "lenet", "LeNet-5 (small: for quick trials)", 61_706, _LECUN,
            input_shape=(1, 32, 32), classes=10),
    _images("resnet", "resnet18", "ResNet-18 for ImageNet", 11_689_512, _RESNET_TV),
    _images("resnet", "resnet34", "ResNet-34 for ImageNet", 21_797_672, _RESNET_TV),
    _images("resnet", "resnet50", "ResNet-50 for ImageNet", 25_557_032, _RESNET_TV),
    _images("resnet", "resnet101", "ResNet-101 for ImageNet", 44_549_160, _RESNET_TV),
    _images("resnet", "resnet152", "ResNet-152 for ImageNet", 60_192_808, _RESNET_TV),
    _cifar("resnet", "resnet18_cifar10", "ResNet-18 for 32 x 32 images", 11_173_962, _RESNET_PC),
    _cifar("resnet", "resnet20_cifar10", "ResNet-20 for CIFAR", 269_722, _RESNET_42),
    _cifar("resnet", "resnet56_cifar10", "ResNet-56 for CIFAR", 853_018, _RESNET_42),
    _cifar("resnet", "resnet110_cifar10", "ResNet-110 for CIFAR", 1_727_962, _RESNET_42),
    _images("vgg", "vgg11", "VGG-11, without batch norm", 132_863_336, _VGG_TV),
    _images("vgg", "vgg16", "VGG-16, without batch norm", 138_357_544, _VGG_TV),
    _images("vgg", "vgg19", "VGG-19, without batch norm", 143_667_240, _VGG_TV),
    _images("googlenet", "googlenet", "GoogLeNet, without inner classifiers", 6_624_904,
            _GOOGLENET),
    _images("googlenet", "googlenet_aux", "GoogLeNet with two inner classifiers", 13_004_888,
            _GOOGLENET, auxiliary_weight=0.3),
    _images("inception", "inception_v3", "Inception V3, no inner classifier", 23_834_568,
            _INCEPTION, input_shape=(3, 299, 299)),
    _images("inception", "inception_v3_aux", "Inception V3 with inner classifier", 27_161_264,
            _INCEPTION, input_shape=(3, 299, 299), auxiliary_weight=0.4),
    _images("densenet", "densenet121", "DenseNet-121 for ImageNet", 7_978_856, _DENSENET),
    _images("densenet", "densenet161", "DenseNet-161 for ImageNet", 28_681_000, _DENSENET),
    _images("mobilenet", "mobilenet_v2", "MobileNetV2, width 1", 3_504_872, _SANDLER),
    _cifar("vgg", "vgg16_bn_cifar10", "VGG-16 with batch norm for CIFAR", 14_728_266, _VGG_PC),
    _cifar("vgg", "vgg_like_cifar10", "VGG-like, with dropout, for CIFAR", 14_987_200, _TSUZUKU),
    _cifar("vgg", "vgg_narrow_cifar10", "VGG-like, narrow, for CIFAR", 59_500, _NARROW),
    _cifar("wide_resnet", "wrn28_10_cifar10", "Wide ResNet 28-10 for CIFAR", 36_479_194, _WIDE),
)
# fmt: on
