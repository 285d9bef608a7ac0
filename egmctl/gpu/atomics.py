"""How long an atomic addition takes whose answer is waited for: see ``kernels/atomic_latency.cu``."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.driver.cuda import call
from egmctl.gpu.memory import DeviceMemory
from egmctl.gpu.program import Kernels
from egmctl.gpu.results import read_words
from egmctl.gpu.timing import Stream

COUNTERS = 64
COUNTER_STRIDE_BYTES = 128
COUNTERS_BYTES = COUNTERS * COUNTER_STRIDE_BYTES
"""Of all counters, each in a line of its own: where in the L2 caches a line lies is in the time of each addition."""
_RESULT_WORDS = 4
_WORDS = COUNTERS_BYTES // 8
_STRIDE_WORDS = COUNTER_STRIDE_BYTES // 8


@dataclass(frozen=True, slots=True)
class Additions:
    """What one launch has measured."""

    elapsed_ns: int
    adds: int
    wrong_answers: int
    """Additions that did not find the number that was there before."""

    @property
    def latency_ns(self) -> float:
        """Mean of the additions."""
        return self.elapsed_ns / self.adds


class Counters:
    """Counters in memory of any kind, which one GPU adds to.

    Parameters
    ----------
    address
        Of :data:`COUNTERS_BYTES`.
    owner
        A stream of the GPU that clears them and looks at them: a check does not take the path under test.
    """

    def __init__(self, address: int, owner: Stream) -> None:
        self.address = address
        self.made = 0
        """Additions that there must be in them."""
        self._owner = owner

    def clear(self) -> None:
        """Set all of the memory to 0, and wait until it is."""
        self._owner.context.make_current()
        call("cuMemsetD32Async", self.address, 0, COUNTERS_BYTES // 4, self._owner.handle)
        self._owner.synchronize()
        self.made = 0

    def wrong_offset(self) -> int | None:
        """Return the offset of the first word that does not hold what all additions make; ``None`` if each does."""
        found = read_words(self._owner, self.address, _WORDS)
        return next((8 * word for word, value in enumerate(found) if value != self._expected(word)), None)

    def _expected(self, word: int) -> int:
        number, rest = divmod(word, _STRIDE_WORDS)
        return 0 if rest else self.made // COUNTERS + (number < self.made % COUNTERS)


class Adder:
    """The GPU that adds: one thread of it.

    Parameters
    ----------
    stream
        Of the GPU; results lie in its memory.
    """

    def __init__(self, stream: Stream, kernels: Kernels) -> None:
        self.stream = stream
        self._kernels = kernels
        self._results = DeviceMemory(stream.context, 8 * _RESULT_WORDS)
        self._adds = 0

    def start(self, counters: Counters, adds: int, *, warm: int) -> None:
        """Queue additions, of which the first ``warm`` are not timed."""
        arguments = counters.address, counters.made, warm, adds, self._results.address
        self._kernels.launch("add_in_turn", self.stream.handle, 1, 1, *arguments)
        counters.made += warm + adds
        self._adds = adds

    def end(self) -> Additions:
        """Wait for what was queued last, and return what it has measured."""
        start, end, wrong, _sm = read_words(self.stream, self._results.address, _RESULT_WORDS)
        return Additions(end - start, self._adds, wrong)

    def close(self) -> None:
        """Free the memory of the results."""
        self._results.close()
