"""egmctl explain: which of an error's known causes hold on a machine, on machines that have each fault and on none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import egmctl
from egmctl.api.doctor import explain, judged
from egmctl.doctor.explain import diagnosis_of, explain_failures
from egmctl.driver.signatures import Signature, signatures
from egmctl.errors import ExitCode, UsageError
from egmctl.model.explanation import CauseState, ErrorLog, Explanation, Failure, KnownCause, Library, Word
from egmctl.model.finding import Status
from egmctl.model.remedy import Remedy
from egmctl.report.kinds import Format
from tests.answers import code_of, render
from tests.doctor.faults import ONLY_TOLD, faults, healthy
from tests.doctor.machines import patched, shipped, with_gpu_denied

CHECKED = {
    check: entry
    for entry in signatures().errors.values()
    for cause in entry.causes
    for check in cause.checks
    if check not in ONLY_TOLD and not check.startswith("peers.")
}
"""A known error by each check that decides one of its causes."""


def explained(machine: Any, call: str | None, number: int, **stated: Any) -> Explanation:
    failure = Failure(library=stated.pop("library", Library.CUDA), call=call, number=number, **stated)
    return judged(ErrorLog(failures=(failure,)), machine).explanations[0]


def states(explanation: Explanation) -> dict[str, CauseState]:
    return {cause.cause: cause.state for cause in explanation.causes}


def as_text(result: object) -> str:
    return " ".join(str(render(result, Format.TEXT)).split())


@pytest.mark.parametrize("check", sorted(CHECKED))
def test_where_a_check_fails_its_cause_is_the_answer(check: str) -> None:
    entry: Signature = CHECKED[check]
    first, *_ = explained(faults()[check].machine(), entry.call, entry.number, library=entry.library).causes
    holding = [cause for cause in entry.causes if check in cause.checks]
    assert first.state is CauseState.HOLDS
    assert first.cause in [cause.cause for cause in holding]
    assert check in [finding.check for finding in first.findings]


@pytest.mark.parametrize(
    "entry",
    [entry for entry in signatures().errors.values() if not entry.vague],
    ids=lambda entry: f"{entry.call}-{entry.number}",
)
def test_on_a_healthy_machine_no_cause_holds_and_only_deciding_checks_exclude_one(entry: Signature) -> None:
    explanation = explained(healthy(), entry.call, entry.number, library=entry.library)
    # The machine is a host, whose checks say nothing about a container.
    decides = {cause.cause: cause.decides and not cause.holds_in for cause in entry.causes}
    left = CauseState.LIKELY if len(decides) > list(decides.values()).count(False) == 1 else CauseState.UNKNOWN
    for cause, state in states(explanation).items():
        assert state is (CauseState.EXCLUDED if decides[cause] else left)


def test_a_check_that_does_not_apply_excludes_nothing() -> None:
    """These GPUs are in no fabric, so its state is skipped: just what makes cuMemCreate fail."""
    machine = patched(shipped("dgx-h100"), "gpus[*].nvml.fabric", state="not-supported")
    causes = states(explained(machine, "cuMemCreate", 800))
    assert causes["the GPUs are in no NVLink fabric, so that they have no fabric handles"] is CauseState.UNKNOWN


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_a_variable_that_hides_every_gpu_is_the_cause(value: str) -> None:
    machine = patched(shipped("hgx-h200x4"), "process", environment={"CUDA_VISIBLE_DEVICES": value})
    (finding,) = egmctl.Doctor(check=("env.visible-devices",)).diagnose(machine).findings
    assert (finding.status, finding.summary) == (Status.PASS, "CUDA_VISIBLE_DEVICES hides every GPU from CUDA")
    first, *_ = explained(machine, "cuInit", 100).causes
    assert (first.state, first.cause[:20]) == (CauseState.HOLDS, "CUDA_VISIBLE_DEVICES")


def test_a_note_excludes_nothing() -> None:
    log = ErrorLog(failures=(Failure(library=Library.CUDA, call="cuInit", number=100),))
    diagnosis = diagnosis_of(log.failures, healthy())
    assert diagnosis is not None
    notes = tuple(replace(finding, status=Status.NOTE) for finding in diagnosis.findings)
    (explanation,) = explain_failures(log, replace(diagnosis, findings=notes)).explanations
    assert set(states(explanation).values()) == {CauseState.UNKNOWN}


def test_settings_of_nccl_are_no_sign_of_compatibility_libraries() -> None:
    machine = patched(shipped("hgx-h200x4"), "process", environment={"NCCL_P2P_DISABLE": "1"})
    assert CauseState.HOLDS not in states(explained(machine, "cuInit", 803)).values()


@pytest.mark.parametrize(
    ("call", "error"), [(None, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"), ("cuInit", 803), ("cuInit", 999)]
)
def test_that_nvml_works_excludes_no_fault_of_cudas_own_libraries_and_nodes(call: str | None, error: Any) -> None:
    (explanation,) = explain(call, error, shipped("hgx-h200x4")).explanations
    assert {cause.state for cause in explanation.causes} == {CauseState.UNKNOWN}


def test_a_function_that_only_the_runtime_has_is_taken() -> None:
    for call in ("cudaLaunchKernel", "cudaMemcpyToSymbol", "cuMemcpyAsync_v2_ptsz", "cudaMalloc"):
        assert explain(call, 700).explanations[0].failure.call == call


def test_a_gpu_that_an_ordinary_allocation_lacks_is_the_cause_where_memory_of_it_is_opened() -> None:
    machine = with_gpu_denied(shipped("hgx-h200x4"), 3)
    assert egmctl.Doctor().diagnose(machine).exit_code is ExitCode.OK
    first, *_ = explained(machine, "cuMemImportFromShareableHandle", 101).causes
    assert (first.state, first.findings[0].check) == (CauseState.HOLDS, "dev.cgroup-restricted")


@pytest.mark.parametrize(
    ("access", "environment", "check"),
    [
        ("EPERM", {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_GPUS_ON_NODE": "1"}, "dev.cgroup-restricted"),
        ("ENOENT", {"NVIDIA_VISIBLE_DEVICES": "void"}, "dev.nodes-missing"),
    ],
)
def test_a_gpu_that_a_job_or_container_did_not_ask_for_is_still_what_an_import_of_its_memory_lacks(
    access: str, environment: dict[str, str], check: str
) -> None:
    """Two jobs, or two containers, of one GPU each that run ranks of one program: seen on two H200."""
    machine = with_gpu_denied(shipped("hgx-h200x4"), 3, access=access)
    machine = patched(machine, "process", environment=environment, container_signs=("/run/.containerenv",))
    first, *_ = explained(machine, "cuMemImportFromShareableHandle", 101).causes
    found = {finding.check: finding.status for finding in first.findings}
    assert (first.state, found[check]) == (CauseState.HOLDS, Status.NOTE)


def test_without_a_machine_every_cause_is_possible() -> None:
    assert set(states(explained(None, "cuMemCreate", 800)).values()) == {CauseState.UNKNOWN}
    assert explain("cuMemCreate", 800).checked is None


def test_the_drivers_own_words_decide_before_any_check() -> None:
    words = "Requested size not aligned to minimum granularity (0x200000 bytes)"
    first, second, *_ = explained(None, "cuMemCreate", 1, log=words).causes
    assert (first.state, second.state) == (CauseState.STATED, CauseState.UNKNOWN)
    assert "granularity" in first.cause


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("cuIpcOpenMemHandle", 205),
        ("cuIpcOpenMemHandle", "205"),
        ("cudaIpcOpenMemHandle", "cudaErrorMapBufferObjectFailed"),
        ("cudaIpcOpenMemHandle", "CUDA_ERROR_MAP_FAILED"),
    ],
)
def test_names_of_driver_and_runtime_and_numbers_have_one_answer(call: str, error: str | int) -> None:
    (explanation,) = explain(call, error).explanations
    assert (explanation.name, explanation.failure.number) == ("CUDA_ERROR_MAP_FAILED", 205)
    assert explanation.causes == explain("cuIpcOpenMemHandle", 205).explanations[0].causes
    assert explanation.causes


def test_a_number_of_nvml_is_not_cudas() -> None:
    assert explain("nvmlInit", 9).explanations[0].name == "NVML_ERROR_DRIVER_NOT_LOADED"
    assert explain("nvmlDeviceGetName", "NVML_ERROR_GPU_IS_LOST").explanations[0].causes


def test_a_call_alone_lists_its_errors_and_asks_which_one_it_was() -> None:
    result = explain("cuMemImportFromShareableHandle")
    assert (result.word, result.exit_code) == (Word.WHICH_ERROR, ExitCode.OK)
    assert as_text(result).startswith(
        "WHICH ERROR?: which error did cuMemImportFromShareableHandle return? 6 are known"
    )


@pytest.mark.parametrize("error", ["CUDA_ERROR_INVALID_VALUE", 101, 400, 801])
def test_an_error_that_means_something_else_for_each_function_asks_for_the_function(error: str | int) -> None:
    result = explain(error=error)
    assert (result.word, result.exit_code) == (Word.WHICH_ERROR, ExitCode.OK)
    assert "from cuMem" in as_text(result)


def test_what_the_node_shows_answers_an_error_without_its_function() -> None:
    result = explain(error=101, machine=with_gpu_denied(shipped("hgx-h200x4"), 3))
    assert result.word is Word.CAUSE
    assert "GPU3" in as_text(result).partition("Next:")[0]


def test_a_call_or_an_error_alone_lists_what_is_known() -> None:
    of_call = explain("cudaIpcOpenMemHandle").explanations
    assert {each.failure.call for each in of_call} == {"cuIpcOpenMemHandle"}
    assert len(of_call) == sum(entry.call == "cuIpcOpenMemHandle" for entry in signatures().errors.values())
    (of_error,) = explain(error="CUDA_ERROR_INVALID_DEVICE").explanations
    assert {"cuMemCreate", "cuMemSetAccess"} <= {call for cause in of_error.causes for call in cause.calls}


def test_an_error_without_its_call_has_the_causes_of_any_call() -> None:
    assert states(explained(None, "cuLaunchKernel", 719)) == states(explained(None, None, 719))


def test_what_is_not_known_is_said_and_ends_with_3() -> None:
    result = explain("cuLaunchKernel", 717)
    assert result.exit_code is ExitCode.NOTHING
    assert "operation not supported on global/shared address space" in as_text(result)
    assert as_text(result).startswith("NOT KNOWN: no cause of this error is known")
    assert explain("cuMemCreate", 800).exit_code is ExitCode.OK


@pytest.mark.parametrize("error", [0, 12345, "CUDA_ERROR_FOO", "-1", ""])
def test_an_error_that_does_not_exist_is_named(error: str | int) -> None:
    with pytest.raises(UsageError, match=rf"no error {error}"):
        explain("cuMemCreate", error)


def test_an_xid_has_the_meaning_and_the_remedy_of_the_catalogue() -> None:
    explanation = explained(None, None, 79, library=Library.XID)
    (cause,) = explanation.causes
    assert (explanation.name, cause.state) == ("Xid 79", CauseState.STATED)
    assert "GPU fell off the bus" in cause.cause
    assert explanation.sources


def test_the_answer_begins_with_the_cause_that_holds_and_its_next_step() -> None:
    shown = as_text(explain("cuMemCreate", "CUDA_ERROR_NOT_PERMITTED", shipped("hgx-h200x4")))
    assert shown.startswith("CAUSE: there is no IMEX channel that this process may read and write (no IMEX channel")
    assert shown.index("HERE there is no IMEX") < shown.index("NOT HERE the GPUs are in no NVLink fabric")
    assert shown.count("NVIDIA_IMEX_CHANNELS=0") == 1, "the remedy is said once"


def test_the_next_step_for_a_cause_that_its_checks_cannot_see_is_its_own_remedy() -> None:
    likely = as_text(explain("cuMemCreate", 800, shipped("gb200-nvl72")))
    assert likely.index("mknod") < likely.index("no data imex.module, imex.channel")
    failure = Failure(
        library=Library.CUDA, call="cuDeviceGet", number=101, log="Parameter ordinal must be between 0 and 3"
    )
    stated = as_text(judged(ErrorLog(failures=(failure,)), replace(shipped("gb200-nvl72"), process=None)))
    assert "Next: Compare the number with the count" in stated
    assert "found" not in stated


def test_a_model_says_so_and_an_open_answer_says_what_to_look_at() -> None:
    shown = as_text(explain("cudaDeviceEnablePeerAccess", 217, shipped("gb200-nvl72")))
    assert shown.startswith("MODEL of gb200-nvl72")
    assert "POSSIBLE CAUSE: the two GPUs have no peer access to each other" in shown


def test_a_cause_that_several_failures_share_is_explained_once() -> None:
    failures = [Failure(library=Library.CUDA, call=call, number=800) for call in ("cuMemCreate", "cuMemPoolCreate")]
    shown = as_text(judged(ErrorLog(failures=tuple(failures)), shipped("hgx-h200x4")))
    assert shown.count("HERE there is no IMEX channel") == 2
    assert shown.count("found no IMEX channel") == 1


def test_documents_leave_out_the_lines_that_were_read() -> None:
    failure = Failure(library=Library.CUDA, call="cuMemCreate", number=800, line="node17: secret", line_number=4)
    log = ErrorLog(failures=(failure,), lines=9)
    assert "node17" in as_text(judged(log, None))
    assert "node17" not in str(render(judged(log, shipped("hgx-h200x4"), redacted=True), Format.JSON))


def test_it_is_public() -> None:
    assert egmctl.explain is explain
    assert str(KnownCause("a", Remedy(text="Do it."))) == "a: do it"


OPERATION_NOT_PERMITTED = Failure(library=Library.CUDA, call="cuMemCreate", number=800)


def test_an_interrupted_text_has_its_answer_so_far_and_ends_as_interrupted() -> None:
    log = ErrorLog(failures=(OPERATION_NOT_PERMITTED,), lines=7, interrupted=True)
    whole, part = judged(replace(log, interrupted=False), None), judged(log, None)
    assert code_of(whole) is ExitCode.OK
    assert code_of(part) is ExitCode.INTERRUPTED
    assert "INTERRUPTED: possible cause in the first 7 lines: " in as_text(part)


def test_the_answer_says_when_kinds_of_errors_were_left_out() -> None:
    log = ErrorLog(failures=(OPERATION_NOT_PERMITTED,), lines=70, left_out=9)
    assert "the gravest of more than" not in as_text(judged(replace(log, left_out=0), None))
    assert "(the gravest of more than 1 kind of errors) Next:" in as_text(judged(log, None))


def test_not_known_names_the_purpose_that_the_text_is_about() -> None:
    nothing = ErrorLog(failures=(), lines=3)
    assert "'egmctl doctor' looks at the node" in as_text(judged(nothing, None))
    about = replace(nothing, purposes=("p2p", "ipc"))
    assert "'egmctl doctor --for p2p,ipc' looks at the node" in as_text(judged(about, None))


def test_a_failure_names_its_gpus() -> None:
    failure = replace(OPERATION_NOT_PERMITTED, devices=("GPU 2", "0000:dc:00"))
    assert "CUDA_ERROR_NOT_PERMITTED (800), GPU 2, 0000:dc:00" in as_text(judged(ErrorLog(failures=(failure,)), None))
