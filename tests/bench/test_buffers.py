"""Which part of a buffer a sample works on: small sizes rotate, and nothing is moved twice that need not be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.buffers import ROTATED_BELOW_BYTES, ROTATED_OVER_BYTES, span_bytes, window

SIZES = st.integers(1, 1 << 23).map(lambda vectors: 16 * vectors)


@given(size=SIZES, passes=st.integers(1, 128), sample=st.integers(0, 1000))
def test_a_window_lies_in_the_buffer_and_holds_no_more_than_its_passes_move(
    size: int, passes: int, sample: int
) -> None:
    part = window(size, passes, sample)
    assert part.slot_bytes == size
    assert 1 <= part.slots <= passes
    assert part.offset_bytes % size == 0
    assert 0 <= part.offset_bytes <= part.offset_bytes + part.size_bytes <= span_bytes(size)


@given(size=SIZES, passes=st.integers(1, 128), sample=st.integers(0, 1000))
def test_small_sizes_come_to_the_same_bytes_only_after_many_others(size: int, passes: int, sample: int) -> None:
    if size >= ROTATED_BELOW_BYTES:
        assert span_bytes(size) == size == window(size, passes, sample).size_bytes
        return
    assert ROTATED_OVER_BYTES <= span_bytes(size) < ROTATED_OVER_BYTES + size
    windows = span_bytes(size) // window(size, passes, sample).size_bytes
    assert windows * window(size, passes, sample).size_bytes > ROTATED_OVER_BYTES // 2
    few = [window(size, passes, sample + number).offset_bytes for number in range(min(windows, 100))]
    assert len(set(few)) == len(few)
