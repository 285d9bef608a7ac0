"""The remedies of messages: for the program that prints the line, where it runs, and for no more than its fault."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from egmctl.driver.messages import KnownMessage, messages
from egmctl.driver.signatures import signatures
from egmctl.model.explanation import KnownCause, Severity, Word
from egmctl.model.remedy import ON_HOST, Need
from egmctl.report.kinds import Format
from tests.answers import render
from tests.handles.messages import explained

ENTRIES = list(messages().entries.values())
READERS = {
    # vLLM's workers run NCCL.
    "NCCL": {"NCCL", "vLLM"},
    "NVSHMEM": {"NVSHMEM"},
    "UCX": {"UCX"},
    "TORCH": {"PyTorch"},
    "NIXL": {"NIXL"},
}
"""Whose variables begin so, and the programs that read them in every message of theirs."""
VARIABLE = re.compile(r"\b(NCCL|NVSHMEM|UCX|TORCH|NIXL)_[A-Z0-9_]+")


def texts(cause: KnownCause) -> tuple[str, ...]:
    remedy = cause.remedy
    return cause.cause, cause.see, cause.alternative, remedy.text, remedy.look or "", remedy.run or ""


def causes() -> Iterator[KnownCause]:
    """Yield the causes that explain knows of messages and of calls."""
    for entry in ENTRIES:
        yield from entry.causes
    for signature in signatures().errors.values():
        yield from signature.causes


def foreign(entry: KnownMessage) -> Iterator[str]:
    """Yield the variables in an answer that the program of the line does not read, and that name no program."""
    for cause in entry.causes:
        for text in texts(cause):
            for variable in VARIABLE.finditer(text):
                family = variable[1]
                names_its_program = re.search(
                    rf"\b{'PyTorch' if family == 'TORCH' else family}: [^;.()]*$", text[: variable.start()]
                )
                if entry.program not in READERS[family] and not names_its_program:
                    yield variable[0]


def test_a_setting_is_of_the_program_that_prints_the_line() -> None:
    assert [(entry.id, variable) for entry in ENTRIES for variable in foreign(entry)] == []


def test_what_a_remedy_for_the_host_says_is_said_once() -> None:
    for cause in causes():
        if set(cause.remedy.works_in) <= set(ON_HOST):
            assert not re.search(r"\bon the host\b|\b[Ii]n a container,", cause.remedy.text), cause


def test_a_reboot_has_no_job_beside_it_and_is_no_second_need_beside_a_reset() -> None:
    for cause in causes():
        needs = set(cause.remedy.needs)
        assert not ({Need.IDLE_GPUS, Need.GPU_RESET} & needs and Need.REBOOT in needs), cause


def test_a_text_that_resets_gpus_says_what_must_be_idle() -> None:
    for cause in causes():
        resets = re.search(r"\breset (?:it|them|that GPU|the GPUs?|all)\b", cause.remedy.text)
        enough = {Need.GPU_RESET, Need.NO_JOBS, Need.NO_DOMAIN_JOBS}
        assert not resets or enough & set(cause.remedy.needs), cause


CONDITIONAL = r"systemctl (?:disable|stop)|--output|\brmmod\b|modprobe -r|sysctl -w|\bkill\b"
"""What ends a service that others use, or overwrites a file: it has conditions, which no command to paste states."""


def test_no_command_to_paste_needs_a_condition() -> None:
    assert [cause.remedy.run for cause in causes() if re.search(CONDITIONAL, cause.remedy.run or "")] == []


def test_a_search_for_pages_on_a_numa_node_names_the_node() -> None:
    looks = [cause.remedy.look or "" for cause in causes() if "numa_maps" in (cause.remedy.look or "")]
    assert looks
    assert all(re.search(r"grep -l ' N\d+='", look) for look in looks)


RETIRED = r"\basked for\b|\balike\b|\ba GPU a \w+|\bNothing at once\b|\bgives? [\w ]+ up\b"


def test_the_words_are_those_of_the_glossary() -> None:
    for entry in ENTRIES:
        said = [entry.means, *(text for cause in entry.causes for text in texts(cause))]
        assert [text for text in said if re.search(RETIRED, text)] == [], entry.id


def test_a_next_step_refers_to_something() -> None:
    for entry in ENTRIES:
        answer = explained(entry.example).answer
        text = answer.next_step.text if answer.next_step else ""
        assert "If so" not in text, entry.id
        first = entry.causes[0]
        if not entry.states and not first.confirmable:
            assert not text.startswith("check first"), f"{entry.id} refers to other lines, or states when it is for"


ANSWERS = [
    ("NVRM: Memory add failed. base: 0x42 size: 0x18 ret: -17", "in use already", "CONFIG_MEMORY_HOTPLUG"),
    ("NVRM: Memory add failed. base: 0x42 size: 0x18 ret: -12", "page tables", "CONFIG_MEMORY_HOTPLUG"),
    ("NVRM: Memory add failed. base: 0x42 size: 0x18 ret: -95", "CONFIG_MEMORY_HOTPLUG", "page tables"),
    (
        "nvidia-persistenced: NUMA: Changing node2 state to online_movable failed",
        "kernel log of that second",
        "numa_maps",
    ),
    ("nvidia-persistenced: NUMA: Changing node2 state to offline failed", "NUMA balancing", "kernel log of that"),
    ("slurmd: error: Failed to initialize NVML: Driver Not Loaded", "before the driver was loaded", "two versions"),
    ("slurmd: error: Failed to initialize NVML: Driver/library version mismatch", "two versions", "before the driver"),
    ("x.cpp:275: init failed for transport: IBGDA", "PeerMappingOverride", "topo -p2p"),
    ("x.cpp:275: init failed for transport: P2P", "topo -p2p", "PeerMappingOverride"),
    ("x.cpp:275: init failed for transport: IBRC", "line before this one", "PeerMappingOverride|topo -p2p"),
    ("slurmstepd: error: pyxis: child 41200 failed with error code: 1", "after this one", "before"),
    ("[ERROR] Failed to allocate Imex session with status NV_ERR_IN_USE", "If a ComputeDomain daemon", r"run +\$"),
    ("IMEX daemon not ready: NOT_READY", "kubectl exec", "On the host: See"),
    ("Error: unresolvable CDI devices nvidia.com/gpu=all", "nvidia-cdi-refresh", r"run +\$"),
    ("GPU 0 was unsuccessfully written to by GPU 1 in a peer-to-peer test", "NVSwitch", "P2P_DISABLE=1 first"),
    ("Detected fatal NvSwitch SXID 20034", "NVSwitch, SXid 20034", "NVSwitch driver|needs a reboot"),
]


@pytest.mark.parametrize(("line", "wanted", "never"), ANSWERS)
def test_lines_that_look_alike_have_their_own_answers(line: str, wanted: str, never: str) -> None:
    text = " ".join(str(render(explained(line), Format.TEXT)).replace(line, "").split())
    assert re.search(wanted, text)
    assert not re.search(never, text)


HARMLESS = next(entry for entry in ENTRIES if entry.severity is Severity.HARMLESS)


def test_only_a_text_of_harmless_lines_is_no_fault() -> None:
    """A line that is not known could state a fault, so what is harmless is then said beside NOT KNOWN."""
    line = HARMLESS.example.strip()
    twice = explained(f"{line}\n{line}\n")
    assert (twice.word, twice.answer.state, int(twice.exit_code)) == (Word.NO_FAULT, "good", 0)
    mixed = explained(f"{line}\nsomething else went wrong\n")
    assert (mixed.word, int(mixed.exit_code)) == (Word.NOT_KNOWN, 3)
    assert "line 1 is no fault" in mixed.answer.sentence
    assert explained(f"{line}\nXid 79").word is Word.CAUSE
    shown = str(render(twice, Format.TEXT))
    assert "STATED" not in shown
    assert not re.search(r"^ +fix ", shown, re.MULTILINE)
