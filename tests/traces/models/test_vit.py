"""ViT-B/16: the published size, its order of parameters, its arithmetic by hand, its positions."""

import torch

from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.registry import MODELS
from gcsim.traces.networks.vit import VisionTransformer

VIT = MODELS["vit_b16"]
BLOCKS, WIDTH, PATCHES = 12, 768, 14 * 14  # arXiv:2010.11929, table 1; 224 / 16 = 14
LENGTH = PATCHES + 1


def test_the_size_is_the_published_one() -> None:
    # torchvision 0.28.0, ViT_B_16_Weights.meta: num_params 86567656, _ops 17.564 (multiply-adds)
    model = build_model(VIT, seed=0, device="meta")
    sizes = [one.numel() for _, one in trainable(model)]
    assert (sum(sizes), len(sizes)) == (86_567_656, 4 + 12 * BLOCKS + 4)
    assert VIT.parameters == sum(sizes)
    linear = LENGTH * (3 + 1 + 4 + 4) * WIDTH**2
    attention = 2 * LENGTH**2 * WIDTH
    by_hand = BLOCKS * (linear + attention) + PATCHES * 3 * 16**2 * WIDTH + 1000 * WIDTH
    assert round(by_hand / 1e9, 3) == 17.564
    assert model_facts(VIT, model, 1).forward_flops == 2 * by_hand


def test_parameters_stand_in_the_order_in_which_the_paper_names_them() -> None:
    names = [name for name, _ in build_model(VIT, seed=0, device="meta").named_parameters()]
    assert names[:4] == [
        "cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
    ]
    assert names[4:16:2] == [
        f"blocks.0.{part}.weight"
        for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    ]
    assert names[-4:] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]


def test_without_positions_it_sees_a_set_of_patches() -> None:
    """Attention does not know where a patch is (section 3.1); positions tell it."""
    torch.manual_seed(0)
    model = VisionTransformer(side=8, patch=4, width=16, blocks=2, heads=2, classes=3)
    image = torch.randn(1, 3, 8, 8)
    turned = image.roll(4, 2)  # the upper two patches change places with the lower two
    with torch.no_grad():
        assert not torch.allclose(model(image), model(turned), atol=1e-6)
        model.pos_embed.zero_()
        torch.testing.assert_close(model(image), model(turned))
        assert not torch.allclose(model(image), model(2 * image), atol=1e-6)
