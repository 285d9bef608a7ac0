"""A second run against a first one: what is reported, what is not, and what it is called."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egmctl.bench.results import summarize
from egmctl.comparison import compare
from egmctl.comparison.paths import TRUSTED_RUNS, Spread, default_spread, known_spread
from egmctl.errors import ExitCode, UsageError
from egmctl.model.comparison import Comparison, Outcome, PathDifference
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Stage
from egmctl.model.record import Command
from egmctl.model.route import Egm
from egmctl.model.task import Endpoint, Quantity
from egmctl.report.kinds import Format
from egmctl.verdict.profiles import all_profiles
from tests.answers import render
from tests.comparison.runs import changed, ended, from_gpu, on_path, reaching, run, saved, times
from tests.doctor.machines import patched
from tests.report.texts import text_of
from tests.verdict.runs import run as run_of

CASE = "device_to_device_memcpy_write_ce"


def two(before: RunReport, after: RunReport) -> Comparison:
    return compare([saved("before", before), saved("after", after)])


def differing(comparison: Comparison) -> list[PathDifference]:
    return [diff for diff in comparison.paths if diff.outcome is not Outcome.SAME]


def test_two_runs_of_one_node_show_no_regression() -> None:
    comparison = two(run(seed=1), run(seed=2))
    assert (comparison.kind, comparison.exit_code, differing(comparison)) == (Command.BENCH, ExitCode.OK, [])
    assert comparison.compared == len(run().measurements) == len(comparison.paths)
    assert re.match(r"SAME: [0-9]+ paths compared: 0 worse, 0 better, 0 different\n", text_of(comparison))


def test_one_pair_that_is_slow_blames_neither_of_its_gpus() -> None:
    slow = times(0.7, lambda m: m.path in ("GPU1 -> GPU2", "GPU2 -> GPU1"))
    text = text_of(two(run(seed=1), changed(run(seed=2), slow)))
    assert text.startswith("WORSE: everything slower is between GPU1 and GPU2; ")


@settings(max_examples=10)
@given(seed=st.integers(), spread=st.floats(0, 0.5), machine=st.sampled_from(["hgx-h200x4", "gb200-tray", "gh200"]))
def test_a_run_with_itself_finds_nothing(seed: int, spread: float, machine: str) -> None:
    report = run(machine, seed=seed, spread=spread)
    comparison = two(report, report)
    assert differing(comparison) == []
    assert [*comparison.affected, *comparison.words, *comparison.machines, *comparison.notes] == []


def test_a_slow_path_is_named_with_both_medians() -> None:
    slow = changed(run(seed=2), times(0.8, lambda m: m.case == CASE and m.path == "GPU1 -> GPU2"))
    comparison = two(run(seed=1), slow)
    (diff,) = differing(comparison)
    assert (diff.case, diff.path, diff.outcome, diff.unit) == (CASE, "GPU1 -> GPU2", Outcome.WORSE, "GB/s")
    assert diff.change == pytest.approx(-0.2, abs=0.01)
    assert comparison.exit_code is ExitCode.FAILED
    text = text_of(comparison, verbose=1)
    assert re.search(
        rf"{CASE}, 512 MiB over NV18 \(GB/s\)\n  GPU1 -> GPU2  2[0-9.]+ -> (1|2)[0-9.]+  +-20.1 %  worse\n", text
    )
    assert f"{comparison.compared - 1} paths unchanged: within 5 % or 3x run-to-run noise\n" in text


def test_a_faster_path_is_shown_and_is_no_regression() -> None:
    comparison = two(run(seed=1), changed(run(seed=2), times(1.2, on_path("GPU1 -> GPU2"))))
    assert {diff.outcome for diff in differing(comparison)} == {Outcome.BETTER}
    assert comparison.exit_code is ExitCode.OK
    assert re.search(r"  GPU1 -> GPU2  .*  \+2[0-9.]+ %  better\n", text_of(comparison))


def test_changes_are_sorted_by_speed_and_15_are_shown_without_v() -> None:
    factors = {path: 0.9 - 0.02 * place for place, path in enumerate(sorted({m.path for m in run().measurements}))}
    after = changed(run(seed=2), lambda m: times(factors[m.path], lambda _: True)(m))
    for verbose, rows in ((0, 15), (1, None)):
        shown = re.findall(
            r"^  .* -> .*  -([0-9.]+) %  worse$", text_of(two(run(seed=1), after), verbose=verbose), re.M
        )
        assert float(shown[0]) == max(map(float, shown))
        assert len(shown) == (rows or len(differing(two(run(seed=1), after))))


def test_on_the_page_left_is_slower_for_bandwidths_and_latencies() -> None:
    slow = [times(0.5, on_path("GPU1 -> GPU2")), times(1.5, on_path("GPU0 -> GPU1"))]
    comparison = two(run(seed=1), changed(changed(run(seed=2), slow[0]), slow[1]))
    ns = tuple(replace(path, unit="ns") for path in comparison.paths)
    for shown, slower in ((comparison, "GPU1 → GPU2"), (replace(comparison, paths=ns), "GPU0 → GPU1")):
        page = str(render(shown, Format.HTML)).partition("</svg>")[0]
        ring = float(re.findall(r'cx="([0-9.]+)%" cy="[0-9.]+" r="4.5" class="before"', page)[0])
        dots = {title: float(x) for x, title in re.findall(r'<circle cx="([0-9.]+)%"[^>]*><title>([^:]+):', page) if x}
        assert {path: x < ring for path, x in dots.items() if abs(x - ring) > 5} == {
            path: path == slower for path in ("GPU1 → GPU2", "GPU0 → GPU1")
        }


def test_runs_that_hardly_overlap_are_not_compared_and_the_reason_says_how_much_they_share() -> None:
    few = replace(
        run(),
        measurements=tuple(
            m if place < 2 else replace(m, size_bytes=4096) for place, m in enumerate(run().measurements)
        ),
    )
    comparison = two(run(), few)
    number = len(run().measurements)
    assert (comparison.compared, comparison.exit_code, comparison.paths) == (0, ExitCode.NOTHING, ())
    text = " ".join(text_of(comparison).split())
    both = f"{number} and {number} measured paths, of which only 2 are the same"
    assert text.startswith(f"NOT COMPARED: the runs hardly overlap: they have {both}")
    part = replace(run(), measurements=run().measurements[:2])
    assert two(run(), part).compared == 2, "a part of a run is compared with the whole"


@pytest.mark.parametrize(("percent", "told"), [(4.5, 0), (5.6, 1)])
def test_what_a_lost_nvlink_costs_is_just_outside_the_tolerance(percent: float, told: int) -> None:
    where = lambda m: m.case == CASE and m.path == "GPU0 -> GPU1"  # noqa: E731
    comparison = two(run(spread=0), changed(run(spread=0), times(1 - percent / 100, where)))
    assert len(differing(comparison)) == told


STEADY = [saved("before", run(spread=0)), saved("after", changed(run(spread=0), times(0.9, on_path("GPU0 -> GPU1"))))]


def test_a_known_spread_counts_three_times() -> None:
    """Two runs that scatter by 2 % each differ by 2.8 %, and by more than 8.5 % in one of 370 cases."""
    for spread, told in ((0.02, True), (0.03, False)):
        comparison = compare(STEADY, spread=lambda _m, spread=spread: Spread(spread, "measured"))  # type: ignore[misc]
        assert bool(differing(comparison)) is told
    assert all("3 x the spread of two runs, each 3 %: measured" in diff.bound_reason for diff in comparison.paths)


def test_the_tolerance_can_be_set() -> None:
    assert differing(compare(STEADY, tolerance=0.2)) == []


# --- a number on one side only ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [MeasurementStatus.CORRUPT, MeasurementStatus.FAILED, MeasurementStatus.CRASHED, MeasurementStatus.TIMED_OUT],
)
def test_a_path_that_broke_is_worse(status: MeasurementStatus) -> None:
    broken = changed(run(), ended(status, "3 words differ", on_path("GPU0 -> GPU1")))
    comparison = two(run(), broken)
    assert {(diff.outcome, diff.reason) for diff in differing(comparison)} == {
        (Outcome.WORSE, f"{status} in after: 3 words differ")
    }
    assert comparison.exit_code is ExitCode.FAILED
    assert f"GPU0 -> GPU1: {status} in after: 3 words differ" in text_of(comparison)
    assert {diff.outcome for diff in differing(two(broken, run()))} == {Outcome.BETTER}
    assert differing(two(broken, broken)) == []


def test_a_path_that_was_waived_is_told_and_counts_for_nothing() -> None:
    comparison = two(run(), changed(run(), ended(MeasurementStatus.WAIVED, "MIG is on", on_path("GPU0 -> GPU1"))))
    assert {(diff.outcome, diff.reason) for diff in differing(comparison)} == {
        (Outcome.DIFFERENT, "waived in after: MIG is on")
    }
    assert comparison.exit_code is ExitCode.OK
    cases = "2 paths: GPU -> GPU, push, copy engine; GPU -> GPU, pull, copy engine"
    assert f"waived in after: MIG is on: {cases}" in " ".join(text_of(comparison).split())


def test_a_path_that_only_one_run_has_is_told() -> None:
    fewer = replace(run(), measurements=run().measurements[4:])
    comparison = two(fewer, run())
    assert [diff.reason for diff in differing(comparison)] == ["not measured in before"] * 4
    assert comparison.compared == len(fewer.measurements)
    assert "not measured in before: 4 paths: CPU memory -> GPU, copy engine\n" in text_of(comparison)


def test_an_unstable_path_is_compared_and_told() -> None:
    def unstable(m: Measurement) -> Measurement:
        return replace(m, status=MeasurementStatus.UNSTABLE, reason="the samples vary by 9 % (CV)")

    shaky = changed(run(), lambda m: unstable(m) if m.path == "GPU0 -> GPU1" else m)
    assert {diff.outcome for diff in differing(two(run(), shaky))} == {Outcome.DIFFERENT}
    slow = changed(shaky, times(0.8, on_path("GPU0 -> GPU1")))
    assert {(diff.outcome, diff.reason) for diff in differing(two(run(), slow))} == {
        (Outcome.WORSE, "unstable in after")
    }


def test_each_difference_of_a_path_with_two_numbers_is_told_whole() -> None:
    def other_memory(m: Measurement) -> Measurement:
        route = replace(m.flows[0].route, egm=Egm.NO)
        return replace(m, status=MeasurementStatus.UNSTABLE, flows=(replace(m.flows[0], route=route),))

    before = run("gh200")
    (path, *_) = [m.path for m in before.measurements if m.flows[0].route.egm is Egm.YES]
    comparison = two(before, changed(before, lambda m: other_memory(m) if m.path == path else m))
    reason = "unstable in after; over C2C-sys, not C2C; EGM: no, not yes"
    assert {diff.reason for diff in differing(comparison)} == {reason}
    assert f"{reason}: " in " ".join(text_of(comparison).split())


def test_nothing_in_common_is_nothing_compared() -> None:
    sized = changed(run(), lambda m: replace(m, size_bytes=4096))
    comparison = two(run(), sized)
    assert (comparison.compared, comparison.exit_code) == (0, ExitCode.NOTHING)


# --- which GPU is which ----------------------------------------------------------------------------------------------


def test_gpus_are_matched_by_bus_id_though_their_indices_have_changed() -> None:
    """Without GPU0, a cgroup's other GPUs are called GPU0, GPU1 and GPU2."""
    report = run(spread=0)
    lost = report.gpus[0].bus_id

    def renamed(end: Endpoint) -> Endpoint:
        number = end.label.removeprefix("GPU")
        return replace(end, label=f"GPU{int(number) - 1}") if number.isdecimal() else end

    def relabel(m: Measurement) -> Measurement:
        (flow,) = m.flows
        return replace(m, flows=(replace(flow, source=renamed(flow.source), destination=renamed(flow.destination)),))

    kept = [
        relabel(m) for m in report.measurements if lost not in (m.flows[0].source.bus_id, m.flows[0].destination.bus_id)
    ]
    slow = [reaching(m, 200) if m.path == "GPU0 -> GPU1" else m for m in kept]
    gpus = tuple(replace(gpu, index=gpu.index - 1, label=f"GPU{gpu.index - 1}") for gpu in report.gpus[1:])
    comparison = two(report, replace(report, gpus=gpus, measurements=tuple(slow)))
    assert {diff.path for diff in comparison.paths if diff.outcome is Outcome.WORSE} == {"GPU0 -> GPU1"}
    assert comparison.compared == len(kept)


# --- what stands beside it -------------------------------------------------------------------------------------------


def test_what_differs_in_the_machines_stands_beside() -> None:
    before = run()
    machine = patched(before.machines[0], "driver", driver_version="600.1")
    comparison = two(before, replace(before, machines=(patched(machine, "gpus[*].nvml", vbios="97.00"),)))
    assert {(diff.about, diff.what, diff.value) for diff in comparison.machines} == {
        ("", "driver driver_version", "600.1"),
        ("GPU0-3", "nvml vbios", "97.00"),
    }
    assert comparison.exit_code is ExitCode.OK
    assert "GPU0-3 VBIOS: 96.00.A5.00.1A -> 97.00\n" in text_of(comparison)


def test_another_gpu_in_the_same_place_is_told() -> None:
    before = run()
    swapped = patched(before.machines[0], "gpus[0].nvml", uuid="GPU-00000000-0000-0000-0000-000000000001")
    comparison = two(before, replace(before, machines=(swapped,)))
    assert comparison.notes == ("GPU0: another GPU than in the first file, by its UUID",)


def test_settings_that_differ_are_told() -> None:
    after = run()
    comparison = two(run(), replace(after, settings=replace(after.settings, serial=True)))
    assert comparison.notes == ("settings differ: serial no in before, yes in after",)


# --- what cannot be compared -----------------------------------------------------------------------------------------


def test_one_file_is_nothing_to_compare() -> None:
    with pytest.raises(UsageError, match="give two files or more"):
        compare([saved("before", run())])


def test_kinds_do_not_mix() -> None:
    other = replace(saved("after", run()), kind=Command.DOCTOR)
    with pytest.raises(UsageError, match=r"before.json is of egmctl bench and after.json is of egmctl doctor"):
        compare([saved("before", run()), other])


def test_a_run_without_a_result_is_told() -> None:
    dead = replace(saved("after", run()), kind=None, result=None, failure="ended with 4 without a result")
    comparison = compare([saved("before", run()), dead])
    assert comparison.exit_code is ExitCode.NOTHING
    assert "after: ended with 4 without a result" in text_of(comparison)


def test_an_interrupted_run_is_told() -> None:
    comparison = two(run(), replace(run(), interrupted=True))
    assert "after: interrupted, a partial report" in text_of(comparison)


# --- sizes and spreads -----------------------------------------------------------------------------------------------


def test_a_run_whose_usual_size_did_not_fit_is_compared_all_the_same() -> None:
    smaller = changed(run(seed=2), lambda m: replace(m, size_bytes=493 << 20))
    comparison = two(run(seed=1), smaller)
    assert comparison.compared == len(comparison.paths) == len(run().measurements)
    assert differing(comparison) == []


def test_sizes_of_a_sweep_are_not_mixed() -> None:
    def sweep(report: RunReport) -> RunReport:
        small = tuple(replace(m, size_bytes=128 << 20) for m in report.measurements)
        return replace(report, measurements=(*report.measurements, *small))

    comparison = two(run(), sweep(run()))
    assert comparison.compared == len(run().measurements)
    assert {diff.size_bytes for diff in differing(comparison)} == {128 << 20}


def test_a_profile_of_many_runs_says_how_far_runs_are_apart() -> None:
    (h200,) = [profile for profile, _ in all_profiles() if profile.name == "hgx-h200"]
    (measured,) = [m for m in run().measurements if m.case == CASE and m.path == "GPU0 -> GPU1"]

    def spread(runs: int, run_to_run: float, *machines: Machine) -> Spread:
        references = tuple(replace(diff, run_to_run=run_to_run) for diff in h200.references)
        sources = {name: replace(source, runs=runs) for name, source in h200.sources.items()}
        learnt = replace(h200, references=references, sources=sources)
        return known_spread(machines or run().machines, [learnt])(measured)

    assert spread(TRUSTED_RUNS, 0.001) == Spread(0.001, "profile hgx-h200")
    assert spread(2, 0.001) == default_spread(measured), "it may have met quiet hours only"
    assert spread(2, 0.1) == Spread(0.1, "profile hgx-h200")
    other = replace(run().machines[0], gpus=())
    assert spread(TRUSTED_RUNS, 0.001, *run().machines, other) == default_spread(measured), "it fits only one of them"


def test_a_healthy_node_s_cpu_threads_are_not_called_slower() -> None:
    """Reading NUMA memory: the first and the fourth of ten runs on an idle node of 2 x H200."""
    before, after, halved = (
        run_of("host_numa_read_cpu", value=lambda *_, gb_s=gb_s: gb_s) for gb_s in (174.5, 136.0, 174.5 / 2)
    )
    assert not differing(two(before, after))
    assert {diff.outcome for diff in differing(two(before, halved))} == {Outcome.WORSE}


def test_what_is_shared_scatters_more_than_what_gpus_have_to_themselves() -> None:
    spreads = {m.case: default_spread(m) for m in run().measurements}
    assert spreads["host_numa_to_device_memcpy_ce"].value > spreads[CASE].value
    by_host, by_gpus = ("ipc_event_round_trip", "ipc_socket_round_trip"), "ipc_flag_device_round_trip"
    report = run_of(*by_host, by_gpus, value=lambda *_: 10700.0)
    bounds = {m.case: default_spread(m).bound for m in report.measurements}
    assert min(bounds[case] for case in by_host) > 0.5 > bounds[by_gpus]


# --- formats ---------------------------------------------------------------------------------------------------------


def test_as_markdown_for_a_ticket() -> None:
    comparison = two(run(seed=1), changed(run(seed=2), times(0.8, from_gpu("GPU1"))))
    (row,) = comparison.affected
    assert (row.where, len(row.paths), row.of, len(row.cases)) == ("GPU1 -> *", 6, 6, 2)
    text = str(render(comparison, Format.MARKDOWN))
    assert text.startswith("## egmctl compare: WORSE\n")
    assert len(re.findall(r"^  .*GPU1.* -(20\.[0-9]|19\.9) %  worse$", text, re.M)) == 6


# --- what is no bandwidth --------------------------------------------------------------------------------------------


def without_bandwidth(**changes: Any) -> RunReport:
    """Return a run that measured something else."""
    return changed(run(), lambda m: replace(m, bandwidth_gb_s=None, flows_gb_s=(), **changes))


def test_of_a_latency_more_is_worse() -> None:
    def latency(factor: float) -> RunReport:
        return without_bandwidth(quantity=Quantity.LATENCY, latency_ns=summarize([800.0 * factor]))

    comparison = two(latency(1), latency(1.3))
    assert {(diff.outcome, diff.unit) for diff in differing(comparison)} == {(Outcome.WORSE, "ns")}
    assert [row.change for row in comparison.affected] == [pytest.approx(0.3)] * len(comparison.affected)
    assert {diff.outcome for diff in differing(two(latency(1.3), latency(1)))} == {Outcome.BETTER}


def test_the_stages_of_a_life_cycle_are_compared_one_by_one() -> None:
    def life_cycle(open_ms: float) -> RunReport:
        stages = tuple(Stage(name=name, ms=summarize([ms])) for name, ms in (("export", 0.1), ("open", open_ms)))
        return without_bandwidth(quantity=Quantity.DURATION, stages=stages)

    comparison = two(life_cycle(1.0), life_cycle(3.0))
    assert {(diff.stage, diff.unit, diff.outcome) for diff in differing(comparison)} == {("open", "ms", Outcome.WORSE)}
    assert f"{CASE}, open, 512 MiB over NV18 (ms)" in text_of(comparison, verbose=1)
