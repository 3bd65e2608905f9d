"""Which image models are shipped? One entry each, plain data; `networks*.py` build them.

The weight of inner classifiers' losses: in GoogLeNet 0.3 (arXiv:1409.4842, section 5); in Inception
V3 0.4, which its paper does not tell: from the authors' code (tensorflow/models,
inception/inception_model.py); tf_cnn_benchmarks (models/model.py) has the same.
"""

from __future__ import annotations

from gcsim.traces.model_entry import ModelEntry

_RESNET = "K. He et al., Deep residual learning for image recognition, arXiv:1512.03385"
_VGG = (
    "K. Simonyan, A. Zisserman, Very deep convolutional networks for large-scale image "
    "recognition, arXiv:1409.1556"
)
_GOOGLENET = (
    "C. Szegedy et al., Going deeper with convolutions, arXiv:1409.4842; with batch norm, in "
    "torchvision's layout"
)
_INCEPTION = (
    "C. Szegedy et al., Rethinking the Inception architecture for computer vision, "
    "arXiv:1512.00567; torchvision's layout"
)
_DENSENET = (
    "G. Huang et al., Densely connected convolutional networks, arXiv:1608.06993; torchvision's "
    "layout"
)
VISION = (
    ModelEntry(
        name="alexnet",
        title="AlexNet, one tower",
        build="gcsim.traces.networks:alexnet",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=61_100_840,
        paper="A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, "
        "arXiv:1404.5997; torchvision's layout",
    ),
    ModelEntry(
        name="lenet",
        title="LeNet-5 (small: for quick trials)",
        build="gcsim.traces.networks:lenet",
        input_shape=(1, 32, 32),
        classes=10,
        parameters=61_706,
        paper="Y. LeCun et al., Gradient-based learning applied to document recognition, "
        "Proc. IEEE 86(11), 1998",
    ),
    ModelEntry(
        name="resnet18",
        title="ResNet-18 for ImageNet",
        build="gcsim.traces.networks_resnet:resnet18",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=11_689_512,
        paper=f"{_RESNET}; torchvision's layout",
    ),
    ModelEntry(
        name="resnet34",
        title="ResNet-34 for ImageNet",
        build="gcsim.traces.networks_resnet:resnet34",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=21_797_672,
        paper=f"{_RESNET}; torchvision's layout",
    ),
    ModelEntry(
        name="resnet50",
        title="ResNet-50 for ImageNet",
        build="gcsim.traces.networks_resnet:resnet50",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=25_557_032,
        paper=f"{_RESNET}; torchvision's layout",
    ),
    ModelEntry(
        name="resnet101",
        title="ResNet-101 for ImageNet",
        build="gcsim.traces.networks_resnet:resnet101",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=44_549_160,
        paper=f"{_RESNET}; torchvision's layout",
    ),
    ModelEntry(
        name="resnet152",
        title="ResNet-152 for ImageNet",
        build="gcsim.traces.networks_resnet:resnet152",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=60_192_808,
        paper=f"{_RESNET}; torchvision's layout",
    ),
    ModelEntry(
        name="resnet18_cifar10",
        title="ResNet-18 for 32 x 32 images",
        build="gcsim.traces.networks_resnet:resnet18_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=11_173_962,
        paper=f"{_RESNET}; pytorch-cifar's layout",
    ),
    ModelEntry(
        name="resnet20_cifar10",
        title="ResNet-20 for CIFAR",
        build="gcsim.traces.networks_resnet:resnet20_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=269_722,
        paper=f"{_RESNET}, section 4.2; shortcuts without parameters",
    ),
    ModelEntry(
        name="resnet56_cifar10",
        title="ResNet-56 for CIFAR",
        build="gcsim.traces.networks_resnet:resnet56_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=853_018,
        paper=f"{_RESNET}, section 4.2; shortcuts without parameters",
    ),
    ModelEntry(
        name="resnet110_cifar10",
        title="ResNet-110 for CIFAR",
        build="gcsim.traces.networks_resnet:resnet110_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=1_727_962,
        paper=f"{_RESNET}, section 4.2; shortcuts without parameters",
    ),
    ModelEntry(
        name="vgg11",
        title="VGG-11, without batch norm",
        build="gcsim.traces.networks_vgg:vgg11",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=132_863_336,
        paper=f"{_VGG}; torchvision's layout",
    ),
    ModelEntry(
        name="vgg16",
        title="VGG-16, without batch norm",
        build="gcsim.traces.networks_vgg:vgg16",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=138_357_544,
        paper=f"{_VGG}; torchvision's layout",
    ),
    ModelEntry(
        name="vgg19",
        title="VGG-19, without batch norm",
        build="gcsim.traces.networks_vgg:vgg19",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=143_667_240,
        paper=f"{_VGG}; torchvision's layout",
    ),
    ModelEntry(
        name="googlenet",
        title="GoogLeNet, without inner classifiers",
        build="gcsim.traces.networks_googlenet:googlenet",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=6_624_904,
        paper=_GOOGLENET,
    ),
    ModelEntry(
        name="googlenet_aux",
        title="GoogLeNet with two inner classifiers",
        build="gcsim.traces.networks_googlenet:googlenet_aux",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=13_004_888,
        paper=_GOOGLENET,
        auxiliary_weight=0.3,
    ),
    ModelEntry(
        name="inception_v3",
        title="Inception V3, no inner classifier",
        build="gcsim.traces.networks_inception:inception_v3",
        input_shape=(3, 299, 299),
        classes=1000,
        parameters=23_834_568,
        paper=_INCEPTION,
    ),
    ModelEntry(
        name="inception_v3_aux",
        title="Inception V3 with inner classifier",
        build="gcsim.traces.networks_inception:inception_v3_aux",
        input_shape=(3, 299, 299),
        classes=1000,
        parameters=27_161_264,
        paper=_INCEPTION,
        auxiliary_weight=0.4,
    ),
    ModelEntry(
        name="densenet121",
        title="DenseNet-121 for ImageNet",
        build="gcsim.traces.networks_densenet:densenet121",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=7_978_856,
        paper=_DENSENET,
    ),
    ModelEntry(
        name="densenet161",
        title="DenseNet-161 for ImageNet",
        build="gcsim.traces.networks_densenet:densenet161",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=28_681_000,
        paper=_DENSENET,
    ),
    ModelEntry(
        name="mobilenet_v2",
        title="MobileNetV2, width 1",
        build="gcsim.traces.networks_mobilenet:mobilenet_v2",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=3_504_872,
        paper="M. Sandler et al., MobileNetV2: inverted residuals and linear bottlenecks, "
        "arXiv:1801.04381; torchvision's layout",
    ),
    ModelEntry(
        name="vgg16_bn_cifar10",
        title="VGG-16 with batch norm for CIFAR",
        build="gcsim.traces.networks_vgg:vgg16_bn_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=14_728_266,
        paper=f"{_VGG}; pytorch-cifar's layout",
    ),
    ModelEntry(
        name="vgg_like_cifar10",
        title="VGG-like, with dropout, for CIFAR",
        build="gcsim.traces.networks_vgg:vgg_like_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=14_987_200,
        paper="Y. Tsuzuku et al., Variance-based gradient compression for efficient distributed "
        "deep learning, arXiv:1802.06058, appendix D",
    ),
    ModelEntry(
        name="vgg_narrow_cifar10",
        title="VGG-like, narrow, for CIFAR",
        build="gcsim.traces.networks_vgg:vgg_narrow_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=59_500,
        paper="after Y. Tsuzuku et al., arXiv:1802.06058, appendix D, with a sixteenth of the "
        "channels",
    ),
    ModelEntry(
        name="wrn28_10_cifar10",
        title="Wide ResNet 28-10 for CIFAR",
        build="gcsim.traces.networks_wide_resnet:wrn28_10_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=36_479_194,
        paper="S. Zagoruyko, N. Komodakis, Wide residual networks, arXiv:1605.07146; without "
        "dropout",
    ),
)
