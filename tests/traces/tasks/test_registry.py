"""Tasks: pure functions of their key, real data where they say so, refusals with a way out."""

import builtins
import hashlib
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.errors import InputError
from gcsim.traces.live import LiveTrainer
from gcsim.traces.models.building import build_model
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.registry import MODELS, ModelEntry
from gcsim.traces.tasks.digits import digits
from gcsim.traces.tasks.registry import TASKS, described, make_task
from gcsim.traces.tasks.text import TokenSequences, frozen_text


def entry(task: str, **changes: Any) -> ModelEntry:
    """A model that the task fits."""
    small = "lenet" if TASKS[task].input == "samples" else "transformer_small"
    return replace(MODELS[small], task=task, **changes)


# --- every task ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_depends_on_seed_worker_step_and_position_alone(name: str) -> None:
    task = make_task(entry(name), 4)
    inputs, labels = task.batch(8, worker=1, step=5)
    task.batch(3, worker=0, step=0)  # no state
    again, labels_again = make_task(entry(name), 4).batch(5, worker=1, step=5)
    assert torch.equal(inputs[:5], again)  # a smaller batch is the beginning of a larger one
    assert torch.equal(labels[:5], labels_again)


@pytest.mark.parametrize("name", TASKS)
def test_seeds_workers_and_steps_give_other_samples(name: str) -> None:
    batches = [
        make_task(entry(name), seed).batch(4, worker=worker, step=step)[0]
        for seed, worker, step in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    for i, one in enumerate(batches):
        for other in batches[i + 1 :]:
            assert not torch.equal(one, other)
    assert not torch.equal(batches[0][0], batches[0][1])


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_has_the_models_shape_and_labels_below_its_classes(name: str) -> None:
    fitting = entry(name)
    inputs, labels = make_task(fitting, 0).batch(6, worker=0, step=0)
    assert inputs.shape == (6, *fitting.input_shape)
    assert inputs.dtype == (torch.int64 if fitting.input == "tokens" else torch.float32)
    assert labels.dtype == torch.int64
    assert labels.shape == ((6, *fitting.input_shape) if fitting.input == "tokens" else (6,))
    assert int(labels.min()) >= 0
    assert int(labels.max()) < fitting.classes


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_shipped_model_names_a_task_that_takes_its_kind_of_input(model: ModelEntry) -> None:
    assert TASKS[model.task].input == model.input


def test_a_mistyped_task_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'textures'"):
        make_task(replace(MODELS["lenet"], task="texture"), 0)


@pytest.mark.parametrize(("model", "task"), [("lenet", "words"), ("transformer_small", "digits")])
def test_a_task_of_the_other_kind_is_refused(model: str, task: str) -> None:
    with pytest.raises(InputError, match="choose one of") as refusal:
        make_task(replace(MODELS[model], task=task), 0)
    assert refusal.value.problems[0].place == "gradients.task"


# --- text ----------------------------------------------------------------------------------------


def test_labels_are_the_tokens_that_follow() -> None:
    tokens, labels = make_task(entry("characters"), 0).batch(4, worker=0, step=0)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])


def test_characters_read_back_as_source_text() -> None:
    tokens, labels = make_task(entry("characters"), 0).batch(4, worker=0, step=0)
    for row, label in zip(tokens, labels, strict=True):
        kinds = [*row.tolist(), int(label[-1])]
        assert 96 not in kinds  # no such character in these samples
        read = "".join("\n" if kind == 0 else chr(kind + 31) for kind in kinds)
        assert read in frozen_text()


def test_anything_that_is_not_printable_ascii_is_one_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gcsim.traces.tasks.text.frozen_text", lambda: "\n ~\té€😀")
    task = make_task(entry("characters", input_shape=(6,)), 0)
    tokens, labels = task.batch(1, worker=0, step=0)
    assert tokens.tolist() == [[0, 1, 95, 96, 96, 96]]
    assert labels[0, -1] == 96


def test_samples_start_uniformly_in_the_text_and_reach_both_ends() -> None:
    tokens = np.arange(10, dtype=np.int32)
    task = TokenSequences(tokens, length=7, seed=0, source="")
    starts = task.batch(3000, worker=0, step=0)[0][:, 0].bincount(minlength=3).double()
    assert len(starts) == 3  # 0, 1, 2: the last label is the last token
    chi_squared = float(((starts - 1000) ** 2 / 1000).sum())
    assert chi_squared < 13.8  # 0.999 quantile with 2 degrees of freedom (tables)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("characters", "adf31dc833603b2749bd249b7f1eb3ec7892a1d3d091bd329dd270092874ad7f"),
        ("words", "20e34e350c4ec01c8168917aa24345e19059092c44d376b13712f01a01d07220"),
    ],
)
def test_a_batch_is_the_same_bits_with_every_python(name: str, digest: str) -> None:
    """A known answer, of Python 3.11.7 and numpy 2: errors that were measured on the text hold for
    no other."""
    tokens, labels = make_task(entry(name), 0).batch(32, worker=0, step=0)
    both = torch.cat((tokens, labels)).numpy().astype("<i8")
    assert hashlib.sha256(both.tobytes()).hexdigest() == digest
    assert "text.xz, SHA-256 d208b344" in described(entry(name), make_task(entry(name), 0))


def test_what_a_task_says_of_itself_is_its_title_where_that_tells_it_all() -> None:
    assert described(entry("textures"), make_task(entry("textures"), 0)) == TASKS["textures"].title


def test_the_text_has_the_figures_that_are_told_of_it() -> None:
    """Figures of tasks/text.py; entropies are conditional ones."""
    text = frozen_text()
    assert len(text) == 3_274_339
    seen = re.sub(r"[^\n -~]", "\0", text)

    def nats(length: int) -> float:
        counts = Counter(seen[place : place + length] for place in range(len(seen)))
        shares = np.array(list(counts.values())) / counts.total()
        return -float((shares * np.log(shares)).sum())

    assert (nats(1), nats(2) - nats(1)) == pytest.approx((3.32, 2.60), abs=0.005)
    words = Counter(re.findall(r"\w+|\n|[^\w\s]", text))
    assert words.total() == pytest.approx(900_000, rel=0.001)
    assert len(words) == pytest.approx(12_400, rel=0.001)
    ((commonest, times),) = words.most_common(1)
    assert commonest == "\n"
    assert times == pytest.approx(79_000, rel=0.01)
    assert sum(count <= 3 for count in words.values()) / len(words) == pytest.approx(0.5, abs=0.01)


def test_equal_words_are_equal_tokens_and_words_follow_zipfs_law() -> None:
    fitting = entry("words", classes=30_522)
    tokens = make_task(fitting, 0)._tokens.tolist()  # type: ignore[attr-defined]
    counts = [count for _, count in Counter(tokens).most_common()]
    # the r-th most frequent has a share near 1/r of the first: slope about -1 in logarithms
    ranks = np.array([10, 100, 1000, 5000])
    slope = np.polyfit(np.log(ranks), np.log([counts[rank - 1] for rank in ranks]), 1)[0]
    assert -1.5 < slope < -0.7
    commonest = frozen_text().count("\n")  # ends of lines
    assert counts[0] == pytest.approx(commonest, rel=0.001)  # a rare word may share its token


@pytest.mark.parametrize("classes", [2, 97, 10_000])
def test_words_fit_any_number_of_classes(classes: int) -> None:
    tokens, _ = make_task(entry("words", classes=classes), 0).batch(4, worker=0, step=0)
    assert int(tokens.max()) < classes


def test_characters_need_97_classes_and_the_way_out_is_words() -> None:
    with pytest.raises(InputError, match="needs 97 classes") as refusal:
        make_task(entry("characters", classes=96), 0)
    assert "'words'" in (refusal.value.problems[0].hint or "")


def test_a_sample_longer_than_the_text_is_refused() -> None:
    with pytest.raises(InputError, match="fewer than a sample") as refusal:
        make_task(entry("characters", input_shape=(1 << 40,)), 0)
    assert refusal.value.problems[0].place == "input_shape"


@pytest.mark.parametrize(("content", "said"), [(b"", "is damaged"), (None, "cannot be read")])
def test_a_text_that_is_not_the_shipped_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str
) -> None:
    file = tmp_path / "text.xz"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr("gcsim.traces.tasks.text.FILE", file)
    frozen_text.cache_clear()
    with pytest.raises(InputError, match=said) as refusal:
        frozen_text()
    assert refusal.value.problems[0].place == "gradients.task"
    assert "install gcsim again" in (refusal.value.problems[0].hint or "")


def test_a_model_with_one_output_a_sequence_is_asked_for_the_token_behind_it() -> None:
    fitting = entry("words", input_shape=(5,), classes=11)
    labels = torch.tensor([[1, 2, 3, 4, 9], [0, 0, 0, 0, 10]])
    logits = torch.randn(2, 11, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([-logits[0].log_softmax(0)[9], -logits[1].log_softmax(0)[10]])
    torch.testing.assert_close(sample_losses(fitting, logits, labels), expected)


# --- digits --------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_in_8_by_8() -> None:
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = digits(entry("digits", input_shape=(64,)), 0).batch(50, worker=0, step=0)
    pixels = (found.data - found.data.mean()) / found.data.std()
    for image, label in zip(images.double().numpy(), labels.tolist(), strict=True):
        nearest = int(np.abs(pixels - image).max(axis=1).argmin())
        assert np.allclose(pixels[nearest], image, atol=1e-4)
        assert found.target[nearest] == label


@pytest.mark.parametrize("shape", [(3, 224, 224), (1, 32, 32), (2, 5, 7), (16, 16)])
def test_digits_fit_any_image(shape: tuple[int, ...]) -> None:
    images, _ = digits(entry("digits", input_shape=shape), 0).batch(3, worker=0, step=0)
    assert images.shape == (3, *shape)
    if len(shape) == 3:
        assert torch.equal(images[:, 0], images[:, -1])  # grey: equal in all channels


def test_what_does_not_fit_digits_is_refused_at_once() -> None:
    with pytest.raises(InputError) as refusal:
        digits(entry("digits", input_shape=(63,), classes=9), 0)
    assert len(refusal.value.problems) == 2


def test_digits_without_scikit_learn_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name)
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="needs scikit-learn") as refusal:
        digits(entry("digits"), 0)
    assert "gcsim[digits]" in (refusal.value.problems[0].hint or "")


def test_lenet_learns_digits() -> None:
    fitting = entry("digits")
    model = build_model(fitting, seed=0)
    task = make_task(fitting, 0)
    trainer = LiveTrainer(
        fitting, model, task, batch_size=128, learning_rate=0.01, momentum=0.9, seed=0
    )
    losses = list(trainer.warm_up(200))
    assert losses[0] == pytest.approx(math.log(10), abs=0.1)
    # nearest mean image, the simplest classifier that looks at all pixels, is right in 90 %; a
    # model as often right, and as sure of it as it should be, has a loss of about
    # -0.9 ln 0.9 - 0.1 ln(0.1 / 9) = 0.54
    assert sum(losses[-25:]) / 25 < 0.54
    images, labels = task.batch(500, worker=1, step=0)
    with torch.no_grad():
        right = float((model(images).argmax(1) == labels).double().mean())
    assert right > 0.9
