"""A folder of images: `train/` and `test/`, each with a folder of PNG or JPEG files per class.

Pillow reads the images, which are resized bilinearly to the model's height and width, converted to
its channels (one: grey; three: RGB), and normalised so that each channel of `train/` has mean 0
and variance 1. They are kept in memory as bytes; grey values of 16 bits lose their lower byte.
Classes are numbered in the order of their names in `train/`.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError, Problem
from gcsim.files import open_file
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.tasks.split import Split, TensorSamples

PREFIX = "folder:"
"""Prefix of the task's name, before the path."""
SUFFIXES = (".png", ".jpg", ".jpeg")
_TRAIN, _TEST = "train", "test"
_HINT = "write FOLDER/train/CLASS/*.png and FOLDER/test/CLASS/*.png (or .jpg)"


def listing(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Return the images by part and class, sorted."""
    return {
        part: {
            label.name: sorted(p for p in label.iterdir() if p.suffix.lower() in SUFFIXES)
            for label in sorted((folder / part).iterdir())
            if label.is_dir()
        }
        for part in (_TRAIN, _TEST)
        if (folder / part).is_dir()
    }


def fault(folder: Path, entry: ModelEntry) -> tuple[str, str] | None:
    """Return a folder's fault for a model, with a suggestion; opens no image."""
    shape = entry.input_shape
    if entry.input != "samples" or len(shape) != 3 or shape[0] not in (1, 3):
        hint = "a model with an input_shape of [3, height, width] or [1, height, width] fits"
        return f"{entry.name} takes {list(shape)}, which is no image", hint
    if not folder.is_dir():
        return f"there is no folder {folder}", _HINT
    found = listing(folder)
    for part in (_TRAIN, _TEST):
        if not any(found.get(part, {}).values()):
            names = sorted(path.name for path in folder.iterdir())
            there = ", ".join(names[:5]) + (", …" if len(names) > 5 else "") or "nothing"
            return f"no images of classes in {folder / part}; {folder} has: {there}", _HINT
    return _fault_of_classes(folder, found, entry)


def _fault_of_classes(
    folder: Path, found: dict[str, dict[str, list[Path]]], entry: ModelEntry
) -> tuple[str, str] | None:
    empty = [f"{part}/{name}" for part in found for name, ones in found[part].items() if not ones]
    if empty:
        return f"{folder}: no PNG or JPEG in {', '.join(empty)}", "remove what is no class"
    strange = found[_TEST].keys() - found[_TRAIN].keys()
    if strange:
        names = ", ".join(sorted(strange))
        hint = "name classes alike in both"
        return f"{folder}: test/ has classes that train/ has not: {names}", hint
    many = len(found[_TRAIN])
    if many > entry.classes:
        hint = "choose a model with as many classes"
        return f"{folder} has {many} classes, {entry.name} only {entry.classes}", hint
    return None


@lru_cache(maxsize=8)
def fingerprint(folder: Path) -> str:
    """Return a hash of all images and their paths."""
    digest = hashlib.sha256()
    for part, classes in listing(folder).items():
        for name, paths in classes.items():
            for path in paths:
                digest.update(os.fsencode(f"{part}/{name}/{path.name}\n"))
                with open_file(path) as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def forget() -> None:
    """Read all folders anew: their images may have changed since this process read them."""
    fingerprint.cache_clear()
    images.cache_clear()


@lru_cache(maxsize=1)
def images(folder: Path, entry: ModelEntry) -> Split:
    """Return the two parts. Raises `InputError` for a faulty folder, or a broken image file."""
    wrong = fault(folder, entry)
    if wrong is not None:
        raise InputError(Problem(place="train.task", message=wrong[0], hint=wrong[1]))
    found = listing(folder)
    numbers = {name: number for number, name in enumerate(found[_TRAIN])}
    pixels: dict[str, Tensor] = {}
    labels: dict[str, Tensor] = {}
    for part, classes in found.items():
        paths = [(path, numbers[name]) for name, ones in classes.items() for path in ones]
        pixels[part] = torch.stack([_pixels(path, entry.input_shape) for path, _ in paths])
        labels[part] = torch.tensor([number for _, number in paths])
    learned = pixels[_TRAIN].float()
    mean = learned.mean((0, 2, 3), keepdim=True)
    deviation = learned.std((0, 2, 3), keepdim=True).clamp(min=1.0)  # of images of one colour

    def normalised(images: Tensor) -> Tensor:
        return (images.float() - mean) / deviation

    train, test = (TensorSamples(pixels[p], labels[p], normalised) for p in (_TRAIN, _TEST))
    return Split(
        train=train,
        test=test,
        source=f"{folder.name}: {len(train):,} images of {len(numbers)} classes",
    )


def _pixels(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Decode an image to uint8 `[channels, height, width]`."""
    from PIL import Image, UnidentifiedImageError

    channels, height, width = shape
    try:
        with Image.open(path) as file:
            image: Image.Image = file
            if file.mode.startswith("I"):  # Pillow's own conversion makes all above 255 white
                image = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
            sized = image.convert("L" if channels == 1 else "RGB").resize(
                (width, height), Image.Resampling.BILINEAR
            )
    except (OSError, UnidentifiedImageError) as error:
        message = f"{path}: no image that can be read ({error})"
        raise InputError(
            Problem(place="train.task", message=message, hint="remove or replace the file")
        ) from error
    found = torch.from_numpy(np.array(sized, dtype=np.uint8))
    return found[None] if channels == 1 else found.permute(2, 0, 1)
