"""How what was taken from the driver is given back: all of it, whatever fails, and the first failure is the one told.

A failure to give one thing back makes others fail: addresses whose mapping stays cannot be freed. What is told must be
the cause, and :class:`contextlib.ExitStack` by itself raises what failed last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ReleaseStack(ExitStack):
    """An ExitStack whose callbacks are all called, the latest first, and which raises the first failure.

    That is the failure of the ``with`` block, or of the first callback that fails; what callbacks raise after it is
    dropped.
    """

    def callback(self, callback: Callable[P, T], /, *args: P.args, **kwds: P.kwargs) -> Callable[P, T]:
        """Have something called at the end."""

        def release(
            _kind: type[BaseException] | None, earlier: BaseException | None, _trace: TracebackType | None
        ) -> bool:
            try:
                callback(*args, **kwds)
            except Exception:
                if earlier is None:
                    raise
            return False

        self.push(release)
        return callback
