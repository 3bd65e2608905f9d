"""What has been prepared of these links already?

Preparing a ring looks at every link, calling it does not. Links are known by identity, and a tuple
of links that is asked for again is found at once: hand over the same tuple each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from gcsim.simulator.network.links import Link

T = TypeVar("T")
_KEPT = 64


class Prepared(Generic[T]):
    """The last few of a kind of prepared things."""

    def __init__(self) -> None:
        self._by_tuple: OrderedDict[Hashable, tuple[Sequence[Link], T]] = OrderedDict()
        self._by_links: OrderedDict[Hashable, tuple[Sequence[Link], T]] = OrderedDict()

    def __call__(self, what: Hashable, links: Sequence[Link], make: Callable[[], T]) -> T:
        """What `make()` makes of the links and of what `what` says, now or the last time."""
        unchanging = isinstance(links, tuple)
        near = (what, id(links))
        if unchanging:
            found = self._by_tuple.get(near)
            if found is not None:
                self._by_tuple.move_to_end(near)
                return found[1]
        far = (what, tuple(map(id, links)))
        found = self._by_links.get(far)
        if found is None:
            # the links are held on to, so that their identities stay theirs
            found = (tuple(links), make())
        _keep(self._by_links, far, found)
        if unchanging:
            _keep(self._by_tuple, near, (links, found[1]))
        return found[1]


def _keep(
    kept: OrderedDict[Hashable, tuple[Sequence[Link], T]],
    key: Hashable,
    value: tuple[Sequence[Link], T],
) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)
