"""Workers of training that are this process."""

from typing import Any

from gcsim.scenarios.progress import SilentProgress

SMALL = """
model: cnn_digits
batch_size: 4
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none, {kind: topk, ratio: 0.1}]
uncertainty: {draws: 0}
train:
  {task: digits, workers: 2, steps: 20, evaluate_every: 10, target: {accuracy: 0.05}, seeds: 1,
   learning_rate: {values: [0.01, 0.1]}, device: cpu}
"""


def here(work: list[Any]) -> Any:
    """Workers that note what they were given."""

    class Here:
        capacity = 1

        def __init__(self, *_: Any, **__: Any) -> None:
            self._done: list[Any] = []

        def start(self, number: int, task: Any) -> None:
            work.append(task)
            self._done.append((number, task.perform(SilentProgress())))

        def finished(self, note: Any) -> list[Any]:
            done, self._done = self._done, []
            return done

        def close(self) -> None: ...

    return Here
