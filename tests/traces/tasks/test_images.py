"""The synthetic task: keyed, of any format, and about unit variance."""

import pytest
import torch

from gcsim.errors import InputError
from gcsim.traces.tasks.images import CLASSES, Textures


@pytest.mark.parametrize(
    "shape", [(3, 224, 224), (1, 32, 32), (4, 9, 31), (1, 1, 1), (17, 5), (50,)]
)
def test_any_format_has_finite_samples_of_about_unit_variance(shape: tuple[int, ...]) -> None:
    images, labels = Textures(shape, 1000, seed=0).batch(32, worker=0, step=0)
    assert images.shape == (32, *shape)
    assert images.dtype == torch.float32
    assert bool(images.isfinite().all())
    assert 0.5 < float(images.std()) < 1.6
    assert labels.dtype == torch.int64


def test_labels_use_all_of_few_classes_and_the_first_of_many() -> None:
    few = torch.cat([Textures((8,), 3, 0).batch(32, worker=0, step=s)[1] for s in range(4)])
    many = torch.cat([Textures((8,), 1000, 0).batch(64, worker=0, step=s)[1] for s in range(4)])
    assert set(few.tolist()) == {0, 1, 2}
    assert set(many.tolist()) == set(range(CLASSES))


def test_labels_are_uniform() -> None:
    labels = torch.cat([Textures((1,), 10, 0).batch(200, worker=0, step=s)[1] for s in range(10)])
    counts = labels.bincount(minlength=10).double()
    chi_squared = float(((counts - 200) ** 2 / 200).sum())
    assert chi_squared < 27.9  # 0.999 quantile with 9 degrees of freedom (tables)


def test_four_axes_are_refused() -> None:
    with pytest.raises(InputError, match="cannot make samples of shape"):
        Textures((2, 3, 4, 5), 10, 0)
