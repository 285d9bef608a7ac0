"""What a measurement must do, and in which order, so that its figures are right: each proof by the calls themselves."""

from __future__ import annotations

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.buffers import Window
from egmctl.bench.engines import copies, latency, transfer
from egmctl.bench.engines.transfer import GatedParts, OwnBuffer, TransferPart
from egmctl.bench.processes import collective
from egmctl.bench.processes.context import AllocatedBuffer, Stopwatch
from egmctl.bench.results import GateExpired, of_both
from egmctl.gpu import memory
from egmctl.gpu.chase import Chain, Reader
from egmctl.gpu.context import ReleaseStack
from egmctl.gpu.cpu_threads import Node, _mask
from egmctl.gpu.pattern import Region, difference_by_cpu, pattern_words
from egmctl.gpu.timing import GatedWork, Mark, Timing
from egmctl.model.measurement import MeasurementStatus
from tests.bench.reports import soak_pass

LOG = list[tuple[Any, ...]]


class FakeStream:
    """A stream that only writes down what is asked of it."""

    def __init__(self, log: LOG, name: str) -> None:
        self.log, self.name = log, name
        self.context = SimpleNamespace(make_current=lambda: None, bus_id="0000:01:00.0", multiprocessors=4)
        self.handle = name

    def wait_for(self, other: FakeStream, mark: Mark) -> None:
        if other is not self:
            self.log.append(("wait", self.name, other.name, mark))

    def mark(self, mark: Mark) -> None:
        self.log.append(("mark", self.name, mark))

    def synchronize(self) -> None:
        self.log.append(("synchronize", self.name))

    def elapsed_ms(self, end: Mark, *, host_ms: float) -> float:
        assert host_ms > 0
        self.log.append(("elapsed", self.name, end))
        return 1.0

    def work(self) -> None:
        self.log.append(("work", self.name))


class FakeGate:
    def __init__(self, log: LOG, expired: bool = False) -> None:
        self.log, self.has_expired = log, expired

    def hold(self, stream: FakeStream) -> None:
        self.log.append(("hold", stream.name))

    def open(self) -> None:
        self.log.append(("open",))

    def expired(self) -> bool:
        return self.has_expired


def gated(*groups: list[list[str]], expired: bool = False) -> tuple[LOG, tuple[Timing, ...]]:
    """Run work on named streams; return what was asked of the driver, in order, and the times."""
    log: LOG = []
    streams: dict[str, FakeStream] = {}

    def stream(name: str) -> FakeStream:
        return streams.setdefault(name, FakeStream(log, name))

    work: Any = [[[(stream(name), stream(name).work) for name in flow] for flow in group] for group in groups]
    gate: Any = FakeGate(log, expired)
    return log, GatedWork(gate, work).run()


class TestTheGate:
    def test_it_opens_once_and_only_when_all_work_is_queued(self) -> None:
        log, _ = gated([["a"], ["b"]], [["c"]])
        assert log[0] == ("hold", "a")
        assert log.count(("open",)) == 1
        opened = log.index(("open",))
        assert {entry[0] for entry in log[opened + 1 :]} == {"synchronize", "elapsed"}
        assert Counter(entry[0] for entry in log[:opened])["work"] == 3

    def test_every_other_stream_starts_after_the_one_behind_the_gate(self) -> None:
        log, _ = gated([["a", "b"], ["c"]], [["d"]])
        for name, first in (("b", "a"), ("c", "a"), ("d", "a")):
            assert log.index(("wait", name, first, Mark.START)) < log.index(("mark", name, Mark.START))
            assert log.index(("mark", name, Mark.START)) < log.index(("work", name))

    def test_a_flow_on_several_streams_ends_when_the_last_of_them_has(self) -> None:
        log, _ = gated([["a", "b", "c"]])
        for other in ("b", "c"):
            assert log.index(("mark", other, Mark.END)) < log.index(("wait", "a", other, Mark.END))
            assert log.index(("wait", "a", other, Mark.END)) < log.index(("mark", "a", Mark.FLOW_END))
        assert [entry for entry in log if entry[0] == "elapsed"] == [
            ("elapsed", "a", Mark.GROUP_END),
            ("elapsed", "a", Mark.FLOW_END),
        ]

    def test_a_group_ends_when_the_last_of_its_flows_has(self) -> None:
        log, _ = gated([["a"], ["b"]])
        assert log.index(("wait", "a", "b", Mark.FLOW_END)) < log.index(("mark", "a", Mark.GROUP_END))

    @pytest.mark.parametrize("expired", [True, False])
    def test_a_time_says_whether_the_gate_had_expired(self, expired: bool) -> None:
        _, (timing,) = gated([["a"]], expired=expired)
        assert timing.expired is expired


class TestAnExpiredGate:
    def parts(self, *, expired: bool) -> GatedParts:
        """Return the work of one task, whose gate has expired or not."""
        gate: Any = FakeGate([], expired)
        made = GatedParts(gate, [])
        made._places = [0]
        timing = Timing(elapsed_ms=1.0, flows_ms=(1.0,), wall_ms=1.0, expired=expired)
        work: Any = SimpleNamespace(run=lambda: (timing,))
        part: Any = SimpleNamespace(on_one_node=True, movers={0: None})
        made._work, made._parts = work, [part]
        return made

    def test_it_is_told_before_the_last_attempt_and_an_error_in_it(self) -> None:
        assert self.parts(expired=True).run(None, False, [0])[0]["expired"] is True
        with pytest.raises(GateExpired):
            self.parts(expired=True).run(None, True, [0])
        assert self.parts(expired=False).run(None, True, [0])[0]["expired"] is False

    @pytest.mark.parametrize(("attempts", "expired"), [(1, [False]), (2, [True, False])])
    def test_its_sample_is_taken_again(
        self, attempts: int, expired: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = iter(expired)
        runs: list[bool] = []

        class Work:
            def __init__(self, *_: object) -> None: ...

            def queue(self, *_: object) -> None: ...

            def run(self, *_: object) -> None: ...

        def do_at_once(part: Any) -> list[Any]:
            if part.func.__name__ == "queue":
                return []
            runs.append(part.args[-1])
            return [[SimpleNamespace(data={"expired": next(left)})]]

        monkeypatch.setattr(transfer, "GatedParts", Work)
        step: Any = SimpleNamespace(each=lambda *_, **__: [], do_at_once=do_at_once, exchange=SimpleNamespace(size=1))
        worker: Any = SimpleNamespace(stopwatch=Stopwatch())
        gate: Any = None
        taken = transfer._timed(step, worker, [], gate, 0)
        assert taken[0][0].data == {"expired": False}
        assert len(runs) == attempts
        assert runs[0] is False, "the first attempt is not the last one"


class TestTheElapsedTimeOfSeveralProcesses:
    def sample(self, *sides: tuple[float, float], on_one_node: bool = True) -> float:
        """Return the elapsed milliseconds of processes that open at a second and take milliseconds."""
        kept: list[float] = []
        part: Any = SimpleNamespace(task=None, on_one_node=on_one_node, _samples=[])
        items: Any = [
            SimpleNamespace(data={"elapsed_ms": ms, "opened_s": at, "wall_ms": ms, "flows": [number], "flows_ms": [ms]})
            for number, (at, ms) in enumerate(sides)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                transfer, "bandwidth_sample", lambda _task, elapsed_ms, _flows, _wall: kept.append(elapsed_ms)
            )
            TransferPart.keep(part, items)
        return kept[0]

    def test_on_one_clock_it_is_from_the_first_opening_to_the_last_end(self) -> None:
        assert self.sample((5.0, 10.0), (5.004, 10.0)) == pytest.approx(14.0)
        assert self.sample((5.0, 10.0), (5.0, 4.0)) == pytest.approx(10.0)

    def test_processes_that_do_not_overlap_have_taken_both_times(self) -> None:
        assert self.sample((5.0, 10.0), (5.02, 10.0)) == pytest.approx(30.0)


class TestARetry:
    @pytest.mark.parametrize(
        "order",
        [
            (MeasurementStatus.UNSTABLE, MeasurementStatus.CORRUPT),
            (MeasurementStatus.CORRUPT, MeasurementStatus.UNSTABLE),
        ],
    )
    def test_corrupt_data_are_kept_whatever_the_other_attempt_was(
        self, order: tuple[MeasurementStatus, MeasurementStatus]
    ) -> None:
        first, second = (soak_pass(1.0, status=status) for status in order)
        assert of_both(first, second).status is MeasurementStatus.CORRUPT
        assert of_both(first, second).attempts == 2

    def test_the_steadier_result_is_kept(self) -> None:
        assert of_both(soak_pass(1.0, status=MeasurementStatus.UNSTABLE), soak_pass(1.0)).status is MeasurementStatus.OK


@pytest.mark.parametrize(
    ("node", "words", "bits"), [(0, [1], 65), (1, [2], 65), (63, [1 << 63], 65), (64, [0, 1], 129)]
)
def test_the_mask_of_a_numa_node_has_its_bit_and_one_more_bit_than_the_kernel_counts(
    node: int, words: list[int], bits: int
) -> None:
    mask, size = _mask(Node(node))
    assert (list(mask), size.value) == (words, bits)
    assert ctypes.sizeof(ctypes.c_ulong) == 8


class TestBuffers:
    def test_what_others_own_is_closed_in_all_processes_before_its_owner_frees_it(self) -> None:
        log: LOG = []
        own, imported, neutral = (SimpleNamespace(end=SimpleNamespace(rank=rank)) for rank in (1, 0, None))

        def release_after_step(buffers: Any) -> str | None:
            log.append(("release", [buffer.end.rank for buffer in buffers]))
            return "it failed" if len(log) == 1 else None

        exchange = SimpleNamespace(rank=1, all_gather=lambda _data: log.append(("wait for all",)))
        worker: Any = SimpleNamespace(exchange=exchange, release_after_step=release_after_step)
        buffers: Any = [own, imported, neutral]
        assert collective.release(worker, buffers) == "it failed"
        assert log == [("release", [0, None]), ("wait for all",), ("release", [1]), ("wait for all",)]

    def test_a_resource_gives_back_the_latest_first(self) -> None:
        log: list[int] = []
        with ReleaseStack() as undo:
            for number in range(3):
                undo.callback(log.append, number)
        assert log == [2, 1, 0]

    @pytest.mark.parametrize(("cpu_reads", "looks"), [(True, 1), (False, 0)])
    def test_the_cpu_compares_one_sample_of_host_memory_too(
        self, cpu_reads: bool, looks: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        monkeypatch.setattr(transfer, "difference_by_cpu", lambda region: seen.append(region.size_bytes))
        pattern = SimpleNamespace(check=lambda _stream, _region: lambda: None)
        held_memory: Any = SimpleNamespace(address=0, size_bytes=64, pageable=False, cpu_reads=cpu_reads)
        stream: Any = FakeStream([], "near")
        worker: Any = SimpleNamespace(pattern=pattern)
        buffer = OwnBuffer(worker, AllocatedBuffer(held_memory, 1), stream, 1)
        for _ in range(3):
            assert buffer.check(Window(0, 1, 64))() is None
        assert seen == [64] * looks

    @pytest.mark.parametrize("size_bytes", [64, 4096, 10000 // 8 * 8, 4 << 20])
    @pytest.mark.parametrize("place", ["first", "where pieces may overlap", "last"])
    def test_the_cpu_finds_a_wrong_word_once(self, size_bytes: int, place: str) -> None:
        words = pattern_words(7, 0, size_bytes // 8).copy()
        region = Region(words.ctypes.data, size_bytes, 7)
        assert difference_by_cpu(region) is None
        at = {"first": 0, "where pieces may overlap": min(400, len(words) // 2), "last": len(words) - 1}[place]
        words[at] ^= 1
        difference = difference_by_cpu(region)
        assert difference is not None
        assert (difference.words, difference.first_offset_bytes) == (1, 8 * at)
        assert difference.expected == difference.found ^ 1

    def test_a_source_is_complete_before_any_flow_reads_it(self) -> None:
        log: LOG = []
        stream: Any = FakeStream(log, "near")
        pattern = SimpleNamespace(fill=lambda _stream, region: log.append(("fill", region.size_bytes)))
        held = AllocatedBuffer(SimpleNamespace(address=0, size_bytes=64, pageable=False), 1)  # type: ignore[arg-type]
        worker: Any = SimpleNamespace(pattern=pattern)
        buffer = OwnBuffer(worker, held, stream, 1)
        buffer.fill(Window(0, 1, 32))
        assert log == [("fill", 32), ("synchronize", "near")]
        buffer.fill(Window(0, 1, 32))
        assert len(log) == 2, "what is filled is not filled again"
        buffer.fill(Window(32, 1, 32))
        assert log[2:] == [("fill", 32), ("synchronize", "near")]

    def test_pinned_memory_is_for_all_contexts_and_mapped_for_the_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[Any, ...]] = []
        monkeypatch.setattr(memory, "call", lambda *call: asked.append(call))
        flags = SimpleNamespace(CU_MEMHOSTALLOC_PORTABLE=1, CU_MEMHOSTALLOC_DEVICEMAP=2)
        monkeypatch.setattr(memory, "bindings", lambda: flags)
        memory._host_alloc(4096)
        assert asked == [("cuMemHostAlloc", 4096, 3)]


class TestAChase:
    def test_its_warm_up_is_walked_and_not_timed(self) -> None:
        launched: list[tuple[Any, ...]] = []
        reader = Reader.__new__(Reader)
        reader.launch = lambda name, *arguments, **_: launched.append((name, *arguments))  # type: ignore[method-assign]
        chain = Chain(address=0, size_bytes=1280, stride_bytes=128, seed=0)
        reader.start_walk(chain, 4, warm=3)
        reader.start_walk(chain, 4, warm=3)
        assert launched == [("chase", 0, 0, 3, 4, 0), ("chase", 0, 7 * 128, 3, 4, 0)]

    @pytest.mark.parametrize("warm", [True, False])
    def test_the_first_walk_visits_every_line_before_if_it_is_warm(self, warm: bool) -> None:
        walks: list[int] = []
        walker: Any = latency.Walker.__new__(latency.Walker)
        walker.task = SimpleNamespace(chase=SimpleNamespace(warm=warm, loads=5), case="a chase")
        walker.chain = SimpleNamespace(lines=77)
        walker.gpu = SimpleNamespace(start_walk=lambda _chain, _loads, *, warm: walks.append(warm))
        walker.warm_up()
        walker.queue()
        walker.queue()
        assert walks == [latency.WARM_UP_LOADS + (77 if warm else 0), latency.WARM_UP_LOADS]
        assert latency.WARM_UP_LOADS >= 1000, "on H200 the first thousand loads over an idle NVLink are slow"


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 7])
def test_the_checksum_of_reads_counts_each_pass_also_those_of_an_unfinished_turn(passes: int) -> None:
    slots, slot_words = 3, 8
    part = Window(0, slots, 8 * slot_words)
    words = pattern_words(5, 0, slots * slot_words)

    def region(window: Window) -> Any:
        return window

    def total(_stream: object, window: Window) -> int:
        return int(sum(map(int, words[: window.size_bytes // 8]))) % (1 << 64)

    read = sum(int(word) for number in range(passes) for word in words.reshape(slots, -1)[number % slots]) % (1 << 64)
    for wrong, is_right in ((0, True), (1, False)):
        pattern = SimpleNamespace(sum=total, check=lambda _stream, _region: lambda: None)
        mover = SimpleNamespace(
            worker=SimpleNamespace(pattern=pattern),
            streams=[None],
            expected=region,
            result=SimpleNamespace(words=lambda wrong=wrong: [(read + wrong) % (1 << 64)]),
        )
        flow: Any = SimpleNamespace(mover=mover)
        finish = copies.check_sum(flow, part, passes)
        assert finish is not None
        assert (finish() is None) is is_right
