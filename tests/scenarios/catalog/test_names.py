"""Phrasings of people for entries of the catalogue: understood, asked back, or refused."""

import pytest

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.sections.network_words import network_of
from gcsim.traces.models.registry import MODELS

UNDERSTOOD = {
    ("device", "v100"): "V100 | Tesla V100 | Tesla V100-SXM2-16GB | NVIDIA V100 | V100 16GB",
    ("device", "v100_sxm_32gb"): (
        "Tesla V100-SXM2-32GB | V100 SXM2 32GB | Tesla V100-SXM3-32GB | V100-SXM2-32G"
    ),
    ("device", "v100_pcie"): "Tesla V100-PCIE-32GB | V100 PCIe",
    ("device", "v100_pcie_16gb"): "Tesla V100-PCIE-16GB",
    (
        "device",
        "a100_sxm_80gb",
    ): "A100 | A100 80GB | DGX A100 | A100-80GB | NVIDIA A100-SXM4-80GB | GRID A100",
    ("device", "a100_pcie_40gb"): "NVIDIA A100-PCIE-40GB | A100 PCIe 40G",
    ("device", "a100_pcie_80gb"): "NVIDIA A100 80GB PCIe | NVIDIA A100 80G PCIe",
    ("device", "a100_sxm_40gb"): "NVIDIA A100-SXM4-40GB",
    ("device", "gh200"): "GH200 | NVIDIA GH200 480GB | NVIDIA GH200 Grace Hopper | Grace Hopper",
    ("device", "h20"): "H20 | NVIDIA H20",
    ("device", "h100_sxm"): (
        "H100-80G | H100 | H100 80GB | NVIDIA H100 80GB HBM3 | H100-SXM5 | H100 SXM | HGX H100"
        " | DGX-H100"
    ),
    ("device", "h100_pcie"): "NVIDIA H100 PCIe",
    ("device", "h200"): "NVIDIA H200 | H200",
    ("device", "rtx_4090"): "4090 | RTX 4090 | rtx4090 | NVIDIA GeForce RTX 4090 | NVIDIA 4090",
    ("device", "rtx_3090"): "GeForce RTX 3090 | RTX3090 | 3090",
    ("device", "rtx_2080_ti"): "2080Ti | 2080 Ti | NVIDIA GeForce RTX 2080 Ti",
    ("device", "gtx_1080_ti"): "1080Ti | GTX 1080 Ti | GTX1080Ti | NVIDIA GeForce GTX 1080 Ti",
    ("device", "p100_pcie"): "Tesla P100-PCIE-16GB",
    ("device", "p100_sxm2"): "P100 SXM2 | Tesla P100-SXM2-16GB",
    ("device", "k80"): "Tesla K80 | K80 | K80 12GB",
    ("device", "t4"): "Tesla T4 | T4 | NVIDIA T4",
    ("device", "a10g"): "A10G | NVIDIA A10G",
    ("device", "a40"): "A40 | NVIDIA A40",
    ("device", "a800_sxm_80gb"): "A800 | NVIDIA A800-SXM4-80GB",
    ("device", "h800_sxm"): "H800 | NVIDIA H800",
    ("device", "b200"): "B200 | NVIDIA B200 | NVIDIA B200 SXM",
    ("device", "gb200"): "GB200 | NVIDIA GB200 | GB200 NVL72",
    (
        "device",
        "mi300x",
    ): "MI300X | Radeon MI300X | AMD Instinct MI300X | amd-mi300x | AMD Instinct MI300X OAM",
    ("device", "rtx_5090"): "5090 | NVIDIA GeForce RTX 5090",
    ("device", "gb10"): "NVIDIA GB10 | DGX Spark",
    ("device", "l4"): "L4",
    ("device", "l40s"): "L40S | NVIDIA L40S",
    ("device", "rtx_a6000"): "RTX A6000 | A6000 | NVIDIA RTX A6000",
    ("device", "p40"): "Tesla P40",
    (
        "device",
        "raspberry_pi_4b",
    ): "Raspberry Pi 4 | Raspberry Pi 4B | raspberry-pi-4 | RPi4 | rpi 4",
    ("device", "raspberry_pi_5"): "RPi 5 | Raspberry Pi 5",
    ("device", "jetson_agx_xavier"): "Jetson Xavier | Jetson AGX Xavier",
    ("device", "cpu_2core"): "cpu | CPU",
    ("model", "resnet50"): (
        "ResNet-50 | microsoft/resnet-50 | ResNet50 | resnet 50 | Resnet_50 | timm/resnet50.a1_in1k"
        " | torchvision.models.resnet50"
    ),
    ("model", "resnet101"): "resnet-101",
    ("model", "gpt2"): "GPT-2 | GPT2 | gpt2-small | GPT-2 small",
    ("model", "bert_base"): "BERT-base | bert-base-uncased | BERT base",
    ("model", "llama3_8b"): "Llama-3-8B-Instruct | meta-llama/Meta-Llama-3-8B",
    (
        "model",
        "bert_large",
    ): "BERT-Large | bert-large-uncased | bert-large-uncased-whole-word-masking",
    ("model", "lstm_wt2_650"): "LSTM WikiText-2 | lstm wikitext2",
    ("model", "vit_b16"): (
        "ViT-B/16 | ViT | vit_base_patch16_224 | google/vit-base-patch16-224"
        " | google/vit-base-patch16-224-in21k"
    ),
    ("model", "vgg16"): "VGG-16",
    ("model", "vgg19"): "VGG 19",
    ("model", "inception_v3"): "Inception-v3 | InceptionV3 | inception",
    ("model", "densenet121"): "DenseNet-121",
    ("model", "mobilenet_v2"): "MobileNetV2 | MobileNet | mobilenetv2_100",
    ("model", "alexnet"): "AlexNet",
    ("model", "lenet"): "LeNet-5 | LeNet",
    ("model", "resnet20_cifar10"): "ResNet-20",
    ("model", "wrn28_10_cifar10"): "Wide ResNet 28-10 | WRN-28-10",
    ("model", "googlenet"): "GoogLeNet | googlenet v1",
    ("network", "10gbe"): (
        "10 GbE | 10GbE | 10gbe | 10G | 10 G | 10 Gbps | 10 Gbit | 10 gigabit ethernet"
        " | 10 gig | 10GigE | 10 GBit/s | 10 Gbit/sec | tcp 10g | ethernet 10G | 10gbe tcp"
        " | 10 Gigabit | 10G Ethernet | 10Gb Ethernet | 10GBASE-T | 10ge"
        " | 1.25 GB/s | 10GBPS | 10 GB Ethernet | 10 gigabits per second | 10 Gigabit/s"
        " | 1.25 gigabytes per second | Speed: 10000Mb/s"
    ),
    ("network", "25gbe"): (
        "25G | 25 GbE | 25 Gbit/s | 25Gbps | 25 Gb/s | 25 GbE SFP28 | 25 Gbps ENA"
        " | 25 Gbit/s network | 25 Gbit/s, 30 us | 25gbe 30 usec"
    ),
    ("network", "40gbe"): "40G",
    ("network", "100gbe"): (
        "100 Gbit/s | 100G | mellanox connectx-5 100g | 100 Gbps | 100GbE | 100 Gb/s ethernet"
        " | 100 Gbps gVNIC | 100 G eth"
    ),
    ("network", "1gbe"): (
        "1 GbE | 1G | gigabit ethernet | 1 Gbps | Gigabit | 1000BASE-T | 2.5 GbE | GigE"
        " | Gigabit LAN"
    ),
    ("network", "infiniband_hdr"): (
        "InfiniBand HDR | IB HDR | HDR InfiniBand | HDR | 200G InfiniBand | NDR200"
        " | 200 Gb/sec (4X HDR)"
    ),
    ("network", "infiniband_fdr"): "56 Gb/sec (4X FDR) | FDR",
    ("network", "nvlink3"): "NVLink 3.0 | NVLink 3",
    (
        "network",
        "infiniband_edr",
    ): "EDR | Infiniband EDR 100Gb/s | 100G IB | 100 Gigabit InfiniBand | HDR100 | HDR 100",
    ("network", "infiniband_ndr"): "NDR | NDR 400 | NDR InfiniBand | 300G InfiniBand | 800G IB",
    ("network", "efa_400gb"): "EFA 400 | 400 Gbps EFA | 3200 Gbps EFA | 3.2 Tb/s EFA",
    ("network", "50gbe"): "50 Gbps ENA",
    ("network", "xgmi"): "Infinity Fabric",
    ("network", "100gb_infiniband"): "100Gb InfiniBand",
    ("network", "25gbe_roce"): "25G RoCE | 25GbE RoCEv2 | 25G RDMA | RoCE 25",
    ("network", "100gbe_roce"): "100 GbE RoCE | 100G RDMA",
    ("network", "efa_100gb"): "EFA 100",
    ("network", "wifi_802.11ac"): "WiFi 5 | 802.11ac",
    ("network", "lte"): "4G | LTE",
    (
        "network",
        "100mbit_ethernet",
    ): "fast ethernet | 100 Mbit | 100 megabit | 100 Mbit/s | 100BASE-TX",
    ("network", "200gbe_roce"): "25 GBps | 25 GB/s",
    ("network", "400gbe_roce"): "400G | 800G | 400 Gbit/s RDMA | 1.6T",
    ("network", "400gbe"): "400G TCP",
    ("network", "pcie4_x16"): "PCIe 4.0 x16 | PCIe Gen4 x16 | PCI Express 4.0 x16",
}
"""By kind and entry: the words for it, apart by |."""

ASKED_BACK = [
    ("device", "P100"), ("device", "p100-16g"), ("device", "V100-32GB"), ("device", "v100-32"),
    ("device", "V100 32G"), ("device", "A100 40GB"), ("device", "A100 PCIe"), ("network", "TCP"),
    ("network", "pcie"), ("model", "BERT"), ("model", "vgg"), ("model", "densenet"),
    ("model", "transformer"), ("model", "lstm"), ("model", "resnet"), ("network", "infiniband"),
    ("network", "InfiniBand"), ("network", "IB"), ("network", "RoCE"), ("network", "EFA"),
    ("network", "AWS EFA"), ("network", "EFA v2"), ("network", "PCIe 5.0"), ("network", "wifi"),
    ("network", "Wi-Fi"), ("network", "5G"), ("network", "ethernet"), ("network", "NVLink"),
]  # fmt: skip
"""Words that several entries match."""

UNKNOWN = [
    ("device", "MI250X"), ("device", "TPUv3"), ("device", "GPU"), ("model", "UNet"),
    ("model", "Llama-4 Scout"), ("model", "Mixtral 8x7B"), ("model", "inceptionv4"),
    ("device", "L40"), ("device", "GTX1080"), ("model", "T5"), ("device", "A10"),
    ("device", "V100S"), ("device", "GH200 144GB"), ("model", "VGG16_bn"), ("device", "P4"),
    ("device", "EPYC"), ("device", "Quadro RTX 6000"), ("model", "resnet-32"),
    ("network", "infiniband_xdr"), ("network", "WAN"), ("network", "4x"), ("network", "4 100G"),
    ("model", "roberta-large"), ("model", "ResNeXt-50"),
]  # fmt: skip
"""Words for which no entry stands: no suggestion is better than a wrong one."""


def _named(kind: str, word: str) -> str:
    if kind == "network":
        found = network_of(word)
        return catalog.link(found).name if isinstance(found, str) else found["like"]
    return (catalog.device if kind == "device" else catalog.model)(word).name


@pytest.mark.parametrize(("kind", "name"), UNDERSTOOD)
def test_words_of_people_name_the_entry(kind: str, name: str) -> None:
    words = UNDERSTOOD[kind, name].split(" | ")
    assert [(word, _named(kind, word)) for word in words] == [(word, name) for word in words]


def test_each_entry_is_its_own_name_in_capitals_and_with_hyphens() -> None:
    for look_up, names in ((catalog.model, MODELS), (catalog.device, catalog.devices())):
        written = {name: name.upper().replace("_", "-") for name in names}
        assert {name: look_up(word).name for name, word in written.items()} == {
            name: name for name in names
        }


@pytest.mark.parametrize(("kind", "word"), ASKED_BACK)
def test_an_ambiguous_word_is_refused_with_the_entries_it_matches(kind: str, word: str) -> None:
    with pytest.raises(InputError, match=r"there are .+, "):
        _named(kind, word)


@pytest.mark.parametrize(
    ("kind", "word"), [*UNKNOWN, ("model", "albert-base"), ("network", "PCIe 4.0 x8")]
)
def test_a_word_without_an_entry_gets_no_wrong_suggestion(kind: str, word: str) -> None:
    with pytest.raises(InputError) as refused:
        _named(kind, word)
    assert "did you mean" not in str(refused.value)
    assert "names several" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "word", "name"),  # a letter left out, put in, changed, exchanged
    [
        ("model", "alexnt", "alexnet"),
        ("model", "berrt-large", "bert_large"),
        ("model", "tramsformer_smal", "transformer_small"),
        ("model", "inceptoin_v3", "inception_v3"),
        ("device", "raspbery pi 4b", "raspberry_pi_4b"),
        ("network", "nvlnk4", "nvlink4"),
    ],
)
def test_a_slip_of_the_pen_is_asked_about(kind: str, word: str, name: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{name}'"):
        _named(kind, word)


@pytest.mark.parametrize(
    ("kind", "word", "left", "name"),
    [
        ("device", "V100-SXM2-32GB-LS", "ls", "v100_sxm_32gb"),
        ("device", "L40S 48GB PCIe", "pcie", "l40s"),
        ("model", "gpt2 medium 355M", "355m", "gpt2_medium"),
        ("model", "MobileNet V2 1.0", "1.0", "mobilenet_v2"),
        ("model", "VGG16_bn", "bn", "vgg16"),
    ],
)
def test_a_piece_too_many_is_named_with_the_entry_of_the_others(
    kind: str, word: str, left: str, name: str
) -> None:
    with pytest.raises(InputError, match=f"without '{left}' it is {name}\\b"):
        _named(kind, word)


@pytest.mark.parametrize("word", ["bonded 2x25G", "2 x 25GbE bonded", "LACP 2x25 Gbit/s"])
def test_links_used_as_one_are_asked_for_by_their_bandwidth(word: str) -> None:
    with pytest.raises(InputError, match="write their bandwidth: 50 Gbit/s"):
        _named("network", word)


def test_the_first_digit_of_a_fraction_is_no_family() -> None:
    with pytest.raises(InputError) as refused:
        _named("network", "1.6X")  # begins neither 1gbe nor nvlink1
    assert "similar" not in str(refused.value)


def test_at_least_nine_of_ten_phrasings_are_understood_or_asked_back() -> None:
    understood = sum(len(words.split(" | ")) for words in UNDERSTOOD.values())
    good = understood + len(ASKED_BACK)
    assert good + len(UNKNOWN) >= 120
    assert good >= 0.9 * (good + len(UNKNOWN))


@pytest.mark.parametrize(
    ("kind", "word", "first"),
    [
        ("device", "v100x", "v100"),
        ("device", "h1000", "h100_sxm"),
        ("model", "resnet5O", "resnet50"),
        ("device", "RTX 3080", "rtx_3090"),
        ("device", "RTX 4080", "rtx_4090, rtx_3090"),
        ("device", "NVIDIA A10", "a10g"),
        ("device", "GTX 1080", "gtx_1080_ti"),
        ("network", "PCIe gen4 x8", "pcie4_x16"),
        ("device", "Jetson Nano", "jetson_agx_xavier"),
        ("model", "mobilenet v3", "mobilenet_v2"),
    ],
)
def test_a_refusal_names_the_words_family_nearest_first(kind: str, word: str, first: str) -> None:
    with pytest.raises(InputError, match=f"similar: {first}\\b"):
        _named(kind, word)


@pytest.mark.parametrize(
    ("kind", "word", "alone", "option"),
    [
        ("device", "8xA100", "A100", "--gpus"),
        ("device", "8 x RTX 4090", "RTX 4090", "--gpus"),
        ("device", "H100 x 8", "H100", "--gpus"),
        ("device", "Tesla V100-SXM2-16GB (x8)", "Tesla V100-SXM2-16GB", "--gpus"),
        ("network", "2x 100 Gbps", "100 Gbps", "--nics"),
        ("network", "dual 25GbE", "25GbE", "--nics"),
        ("network", "4 x 100G", "100G", "--nics"),
        ("network", "5 x 10G", "10G", "--nics"),
        ("network", "4 \u00d7 400G", "400G", "--nics"),
        ("network", "25G x 3", "25G", "--nics"),
    ],
)
def test_several_of_an_entry_are_asked_for_as_one_and_a_number(
    kind: str, word: str, alone: str, option: str
) -> None:
    with pytest.raises(InputError, match=f"names several; write {alone}, and .*{option}"):
        _named(kind, word)


@pytest.mark.parametrize(
    ("kind", "words", "way"),
    [
        ("device", "B300 | MI250 | TPU v4 | Gaudi2 | Titan V | Orin", "gcsim calibrate device"),
        ("network", "XDR | Omni-Path | Slingshot 11 | ConnectX-6 | bluefield-3 | ENA", "a rate"),
    ],
)
def test_what_is_like_no_entry_gets_another_way(kind: str, words: str, way: str) -> None:
    for word in words.split(" | "):
        with pytest.raises(
            InputError, match=rf"unknown \w+ '{word}'; {way}.*gcsim list \w+s has all$"
        ):
            _named(kind, word)


def test_a_latency_behind_a_rate_is_that_links() -> None:
    assert network_of("10 gbps 50us") == {"like": "10gbe", "latency": "50us"}
    changed = {"like": "10gbe", "bandwidth": "13 Gbit/s", "latency": "0.03 ms"}
    assert network_of("13 Gbit/s, 0.03 ms") == changed


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("p3.16xlarge", "v100, devices_per_node 8 (--gpus), network 25gbe"),
        ("P4d.24xlarge", "a100_sxm_40gb, devices_per_node 8 (--gpus), network efa_400gb"),
        ("ml.g5.12xlarge", "a10g, devices_per_node 4 (--gpus), network 40gbe"),
        (
            "Standard_ND96asr_v4",
            "a100_sxm_40gb, devices_per_node 8 (--gpus), network infiniband_hdr, nics_per_node 8"
            " (--nics)",
        ),
        ("Standard_NC24ads_A100_v4", "a100_pcie_80gb, devices_per_node 1 (--gpus)"),
        ("DGX-2", "v100_sxm_32gb, devices_per_node 16 (--gpus)"),
    ],
)
def test_a_machine_is_asked_for_by_its_devices(word: str, meant: str) -> None:
    with pytest.raises(InputError) as refused:
        catalog.device(word)
    assert str(refused.value) == f"error: {word!r} is a machine; write {meant}"


def test_machines_are_of_devices_and_links_of_the_catalogue() -> None:
    for _, number, *network in (rows := catalog._aliases()["machines"]).values():
        assert number >= 1
        assert set(network[:1]) <= catalog.links().keys()
    assert {device for device, *_ in rows.values()} <= catalog.devices().keys()


@pytest.mark.parametrize(
    ("word", "size"),
    [
        ("opt-1.3b", "1.3B"),
        ("mistral-7b", "7B"),
        ("Pythia 1.4B", "1.4B"),
        ("BLOOM-7B1", "7.1B"),
        ("GPT-NeoX-20B", "20B"),
        ("opt-125m", "125M"),
        ("opt-175b", None),
        ("pythia-160m", None),
    ],
)
def test_an_unknown_model_is_asked_for_by_a_size_that_advice_takes(
    word: str, size: str | None
) -> None:
    with pytest.raises(InputError) as refused:
        catalog.model(word)
    assert ("--parameters" in str(refused.value)) == (size is not None)
    if size is not None:
        assert f"--parameters {size} takes" in str(refused.value)
        words = Words(device="h100", gpus=8, nodes=2, network="400gbe", parameters=size)
        assert ask(None, words).document.data["model"]


def test_what_a_word_was_read_as_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    assert catalog.device("GeForce  RTX-4090").name == "rtx_4090"
    assert "is read as rtx_4090" in caplog.text


@pytest.mark.parametrize("rate", [1, 10, 25, 40, 50, 100, 200, 400])
def test_a_bare_rate_in_a_scenario_is_ethernet_without_rdma(rate: int) -> None:
    assert catalog.link(f"{rate} Gbit/s").name == f"{rate}gbe"
