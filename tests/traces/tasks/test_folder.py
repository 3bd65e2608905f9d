"""A folder of images: what is read, and what is refused."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.trained.study import train
from gcsim.traces.models.registry import MODELS, ModelEntry, trained_on
from gcsim.traces.tasks import folder as images
from gcsim.traces.tasks.registry import make_split

CLASSES = {"cat": (200, 30, 30), "dog": (30, 30, 200)}
SCENARIO = """\
model: resnet20_cifar10
batch_size: 2
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none]
train: {task: "folder:pets", workers: 2, steps: 2}
"""


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Six images to learn and two held out, of three sizes; a cat is red, a dog is blue."""
    drawn = np.random.default_rng(0)
    for part, many in (("train", 3), ("test", 1)):
        for name, colour in CLASSES.items():
            of = tmp_path / "pets" / part / name
            of.mkdir(parents=True)
            for number in range(many):
                noise = drawn.integers(-20, 20, (8 + 4 * number, 10, 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                suffix = ".png" if number else ".JPG"
                Image.fromarray(pixels).save(of / f"{number}{suffix}")
    return tmp_path / "pets"


def entry(folder: Path, **changes: object) -> ModelEntry:
    model = replace(MODELS["resnet20_cifar10"], **changes)  # type: ignore[arg-type]
    return trained_on(model, f"folder:{folder}")


def test_images_have_the_models_shape_and_their_folders_classes(pets: Path) -> None:
    split = make_split(entry(pets), 0)
    inputs, labels = split.train.taken(np.arange(6))
    assert (inputs.dtype, inputs.shape) == (torch.float32, (6, 3, 32, 32))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert split.train.labels is not None
    assert split.train.labels.tolist() == labels.tolist()
    assert inputs.mean((0, 2, 3)) == pytest.approx(0, abs=1e-5)
    assert inputs.std((0, 2, 3)) == pytest.approx(1, abs=1e-3)
    assert inputs[0, 0].mean() > 0.9 > -0.9 > inputs[0, 2].mean()  # a cat is red and not blue
    held, names = split.test.taken(np.array([1, 0]))
    assert names.tolist() == [1, 0]
    assert held[0, 2].mean() > 0.9 > -0.9 > held[1, 2].mean()
    assert split.source == "pets: 6 images of 2 classes"


def test_of_one_channel_they_are_grey(pets: Path) -> None:
    inputs, _ = make_split(entry(pets, input_shape=(1, 8, 8)), 0).train.taken(np.array([0]))
    with Image.open(pets / "train/cat/0.JPG") as image:
        grey = np.array(image.convert("L").resize((8, 8), Image.Resampling.BILINEAR), dtype=float)
    shown = inputs[0, 0].double().numpy()
    line = np.polyfit(grey.ravel(), shown.ravel(), 1)
    assert shown == pytest.approx(np.polyval(line, grey), abs=1e-5)  # shifted and scaled alone


def test_a_fingerprint_is_of_what_the_images_are(pets: Path) -> None:
    before = images.fingerprint(pets)
    path = pets / "train/dog/1.png"
    path.touch()
    images.forget()
    assert images.fingerprint(pets) == before
    Image.new("RGB", (8, 8)).save(path)
    images.forget()
    assert images.fingerprint(pets) != before


def test_a_training_reads_the_images_that_are_there_now(pets: Path) -> None:
    """Also in a process that read the folder before."""
    (pets.parent / "mine.yaml").write_text(SCENARIO.replace("steps: 2", "steps: 2, seeds: 1"))
    changes = ["train.target={loss: 99}", "train.patience=1", "uncertainty={draws: 0}"]
    found = []
    for colour in ("red", "green"):
        Image.new("RGB", (8, 8), colour).save(pets / "train/dog/1.png")
        training = train(load_scenario(str(pets.parent / "mine.yaml"), changes), jobs=1)
        found.append([one.loss for one in training.curves])
    assert found[0] != found[1]


def test_grey_values_of_16_bits_keep_their_upper_byte(pets: Path) -> None:
    grey = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(grey).save(pets / "train/cat/1.png")
    split = make_split(entry(pets, input_shape=(1, 8, 8)), 0)
    shown = split.train.taken(np.array([1]))[0][0, 0].double().numpy()
    line = np.polyfit((grey >> 8).ravel(), shown.ravel(), 1)
    assert shown == pytest.approx(np.polyval(line, grey >> 8), abs=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="names that are no UTF-8")
def test_a_name_that_is_no_text_has_a_fingerprint(pets: Path) -> None:
    before = images.fingerprint(pets)
    (pets / "train/cat/1.png").rename(pets / "train/cat" / os.fsdecode(b"\xff.png"))
    images.forget()
    assert images.fingerprint(pets) != before


def remove_test(pets: Path) -> None:
    for path in sorted((pets / "test").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (pets / "test").rmdir()


def rename(pets: Path) -> None:
    (pets / "test/dog").rename(pets / "test/wolf")


def add(pets: Path) -> None:
    (pets / "train/bird").mkdir()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove_test, r"no images of classes in \S*pets/test; \S*pets has: train; write FOLDER/tr"),
        (rename, "test/ has classes that train/ has not: wolf"),
        (add, "no PNG or JPEG in train/bird"),
        (
            lambda pets: pets.rename(pets.parent / "other"),
            r"there is no folder \S*pets; write FOLD",
        ),
    ],
)
def test_a_scenario_with_a_folder_that_does_not_do_says_where(
    change: object, said: str, pets: Path
) -> None:
    """Before anything is trained: the file, the line, what was found, what to write."""
    (pets.parent / "pets.yaml").write_text(SCENARIO)
    assert load_scenario(pets.parent / "pets.yaml").train_task == f"folder:{pets}"
    change(pets)  # type: ignore[operator]
    with pytest.raises(InputError, match=r"pets\.yaml:5:\d+: error: train\.task: .*" + said):
        load_scenario(pets.parent / "pets.yaml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_shape": (64,)}, r"takes \[64\], which is no image"),
        ({"classes": 1}, "has 2 classes, resnet20_cifar10 only 1"),
    ],
)
def test_a_model_that_does_not_fit_is_told(
    changes: dict[str, object], said: str, pets: Path
) -> None:
    with pytest.raises(InputError, match=said):
        make_split(entry(pets, **changes), 0)


def test_a_file_that_is_no_image_is_named(pets: Path) -> None:
    (pets / "train/cat/2.png").write_text("no image")
    with pytest.raises(InputError, match=r"2\.png: no image that can be read"):
        make_split(entry(pets), 0)
