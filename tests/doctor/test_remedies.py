"""Every remedy of every check, wherever the process runs: no harm, no reach beyond the finding, and it works there.

The machines: the fault of every check, the corpus, the shipped ones, and random ones, of which ``EGMCTL_FUZZ`` makes
more.
"""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from egmctl.doctor.check import EVERYTHING, Check, Scope
from egmctl.doctor.commands import ProgramCall, UndocumentedError, programs, steps
from egmctl.doctor.kernel_faults import catalogue
from egmctl.doctor.remedies import fitted_anywhere, fitted_remedy, site
from egmctl.doctor.runner import CHECKS, diagnose, texts
from egmctl.driver.messages import messages
from egmctl.driver.signatures import signatures
from egmctl.facts import replay
from egmctl.model.explanation import KnownCause
from egmctl.model.finding import NODE, Finding, Guard, Status, on_gpus, on_numa
from egmctl.model.host import Process
from egmctl.model.machine import Machine
from egmctl.model.remedy import GPUS, IN_CONTAINER, ON_HOST, Need, Remedy, Site
from egmctl.topology.resets import reset_together
from tests.doctor.faults import faults, healthy
from tests.doctor.machines import patched, shipped
from tests.doctor.scenes import scenes
from tests.doctor.sick import SICK
from tests.mutation import mutated

RANDOM_MACHINES = int(os.environ.get("EGMCTL_FUZZ", "2000")) // 100
NAMED = Scope(purposes=tuple(Guard))


def at(machine: Machine, here: Site) -> Machine:
    """The machine as a process sees it that runs there."""
    process = machine.process or Process()
    variables = {
        name: text for name, text in (process.environment or {}).items() if name not in ("SLURM_JOB_ID", "LSB_JOBID")
    }
    signs: tuple[str, ...] = ()
    if here is Site.JOB:
        variables["SLURM_JOB_ID"] = "7"
    elif here in IN_CONTAINER:
        signs = ("/.dockerenv",) if here is Site.CONTAINER else ("/run/.containerenv", "KUBERNETES_SERVICE_HOST")
    return replace(machine, process=replace(process, environment=variables, container_signs=signs))


@dataclass(frozen=True)
class Case:
    """A finding with a remedy, and where it was shown."""

    machine: Machine
    here: Site
    finding: Finding
    skipped: frozenset[str]
    """The checks that do not apply there."""

    @property
    def remedy(self) -> Remedy:
        assert self.finding.remedy is not None
        return self.finding.remedy

    def __str__(self) -> str:
        return f"{self.finding.check} {self.here} {self.finding.place.label}: {self.remedy}"


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every remedy that a check gives on any of the machines, at each site; each once."""
    choice = random.Random(7)  # noqa: S311
    scene_machines = [scene.machine() for scene in {**scenes(), **SICK}.values()]
    asked: list[tuple[Machine, tuple[Scope, ...]]] = [
        (fault.machine(), (fault.scope, replace(fault.scope, purposes=tuple(Guard)))) for fault in faults().values()
    ]
    asked += [(machine, (EVERYTHING, NAMED)) for machine in scene_machines]
    asked += [(shipped(name), (NAMED,)) for name in replay.machine_names()]
    for _ in range(RANDOM_MACHINES):
        machine = mutated(choice.choice(scene_machines), choice)
        if not any(replay._faults(machine)):
            asked.append((machine, (choice.choice((EVERYTHING, NAMED)),)))
    return tuple(_distinct(asked))


def _distinct(asked: Sequence[tuple[Machine, tuple[Scope, ...]]]) -> Iterator[Case]:
    known = set()
    for machine, scopes in asked:
        for here in Site:
            here_machine = at(machine, here)
            checks = [_judging_once(check) for check in CHECKS]
            for diagnosis in (diagnose(here_machine, scope, checks) for scope in scopes):
                skipped = frozenset(check for check, status in diagnosis.verdicts.items() if status is Status.SKIP)
                for finding in diagnosis.findings:
                    key = finding.check, here, finding.place, finding.remedy
                    if finding.remedy is not None and key not in known:
                        known.add(key)
                        yield Case(here_machine, here, finding, skipped)


def _judging_once(check: Check) -> Check:
    """Return a check that judges one machine: once, as no check reads the purposes of a scope."""
    findings: dict[Scope, Iterable[Finding]] = {}

    def judge(machine: Machine, scope: Scope) -> Iterable[Finding]:
        of_any_purpose = replace(scope, purposes=None)
        if of_any_purpose not in findings:
            findings[of_any_purpose] = check.judge(machine, scope)
        return findings[of_any_purpose]

    return replace(check, judge=judge)


def known_causes() -> Iterator[KnownCause]:
    """Yield the causes that explain knows."""
    for signature in signatures().errors.values():
        yield from signature.causes
    for message in messages().entries.values():
        yield from message.causes


def commands(case: Case) -> tuple[str, ...]:
    return tuple(command for command in (case.remedy.look, case.remedy.run) if command is not None)


def changing(command: str) -> list[ProgramCall]:
    return [step for step in steps(command) if step.changing]


def test_enough_remedies_are_tried() -> None:
    assert len(cases()) >= 600
    assert len({case.finding.check for case in cases()}) >= 60
    assert sum(case.remedy.run is not None for case in cases()) >= 60
    assert {case.here for case in cases()} == set(Site)


def test_every_program_and_option_is_documented() -> None:
    assert all(program.source for program in programs().values())
    for case in cases():
        for command in commands(case):
            try:
                assert steps(command), case
            except UndocumentedError as error:
                pytest.fail(f"{error}: {case}")


def is_whole(sentence: str) -> bool:
    """Return whether a sentence does not end within brackets, quotation marks or an abbreviation."""
    pairs = all(sentence.count(first) == sentence.count(last) for first, last in ("()", "[]", "{}"))
    # An apostrophe, as in "the GPUs' errors", ends like a quotation but begins none.
    quoted = len(re.findall(r"(?<![^\s(])'", sentence)) <= len(re.findall(r"'(?!\w)", sentence))
    return pairs and quoted and re.search(r"\b(e\.g|i\.e|cf|etc|vs|no|approx)$", sentence, re.IGNORECASE) is None


def test_the_first_sentence_of_a_remedy_is_whole() -> None:
    """A fleet's next step is that sentence."""
    remedies = {case.remedy for case in cases()} | {cause.remedy for cause in known_causes()}
    assert [remedy.first_sentence for remedy in remedies if not is_whole(remedy.first_sentence)] == []


def test_a_sentence_that_was_cut_is_seen() -> None:
    assert is_whole("Reset the GPU (see 'nvidia-smi -q'), or reboot the node's host")
    cut = ("Load the module (it is not loaded", "Run 'nvidia-smi", "Use another driver, e.g")
    assert [sentence for sentence in cut if is_whole(sentence)] == []


def test_looking_changes_nothing_and_running_does() -> None:
    for case in cases():
        assert case.remedy.look is None or not changing(case.remedy.look), case
        assert case.remedy.run is None or changing(case.remedy.run), case


def test_what_changes_something_says_what_it_needs() -> None:
    for case in cases():
        needs = {need for step in steps(case.remedy.run or "") for part in step.changing for need in part.needs}
        assert needs <= set(case.remedy.needs), case
        if {Need.IDLE_GPUS, Need.GPU_RESET, Need.DRIVER_RELOAD}.intersection(case.remedy.needs):
            assert case.remedy.idle or not case.machine.gpus, case


DEMANDS = {
    r"\b(?:and|then|to) reset (?:it|them|the GPU|all GPUs|the nodes' GPUs)": {
        Need.GPU_RESET,
        Need.NO_JOBS,
        Need.REBOOT,
    },
    r"reload the driver|[Rr]eload the kernel module": {Need.DRIVER_RELOAD},
    r"^Boot |(?i:power-cycle the node)|and reboot\b": {Need.REBOOT},
    r"[Rr]estart the fabric manager|restart Fabric Manager": {Need.NO_JOBS, Need.NO_DOMAIN_JOBS},
}
"""What a text asks for: one of these needs states what must be idle."""


def test_what_the_words_ask_for_is_among_the_needs() -> None:
    for case in cases():
        for words, needs in DEMANDS.items():
            if re.search(words, case.remedy.text):
                assert needs.intersection(case.remedy.needs), case


def test_what_the_words_of_a_known_cause_ask_for_is_among_its_needs() -> None:
    for cause in known_causes():
        for words, needs in DEMANDS.items():
            assert needs.intersection(cause.remedy.needs) or not re.search(words, cause.remedy.text), cause


def test_a_remedy_for_no_node_in_particular_names_no_gpu_and_says_what_is_for_the_host() -> None:
    remedy = Remedy(text="Reset it.", run="nvidia-smi --gpu-reset -i {gpus}", needs=(Need.GPU_RESET,), works_in=ON_HOST)
    said = fitted_anywhere(remedy)
    assert (said.words, said.run) == ("On the host: Reset it (resets the GPU, idle first).", None)
    anywhere = Remedy(text="Unset it.")
    assert fitted_anywhere(anywhere) == anywhere


def test_no_fix_of_a_fault_names_a_check_that_does_not_apply() -> None:
    ids = {check.id for check in CHECKS}
    for case in cases():
        if case.finding.status in (Status.FAIL, Status.WARN):
            named = ids.intersection(re.findall(r"[a-z0-9]+\.[a-z0-9-]+", case.remedy.text))
            assert not named & case.skipped, case


def test_no_command_reaches_beyond_the_finding() -> None:
    """A change names the finding's GPUs, and those that can only be reset with them, whose names are stated."""
    for case in cases():
        own = case.finding.place.gpus
        for step in changing(case.remedy.run or ""):
            if not any(getattr(part, "of_gpus", False) for part in step.changing):
                continue
            assert step.names_gpus is not None, case
            named = set(step.names_gpus.split(","))
            together = reset_together(case.machine, (g for g in case.machine.gpus or () if g.bus_id in (own or ())))
            allowed = set(own or ()) | {gpu.bus_id for gpu in together if Need.GPU_RESET in case.remedy.needs}
            assert named <= allowed, case
            assert named - set(own or ()) <= set(case.remedy.touches), case


def test_every_other_gpu_that_is_interrupted_is_named() -> None:
    for case in cases():
        gpus = [gpu for gpu in case.machine.gpus or () if gpu.bus_id in case.remedy.touches]
        assert len(gpus) == len(case.remedy.touches), case
        assert not set(case.remedy.touches) & set(case.finding.place.gpus or ()), case
        idle = on_gpus(
            gpu for gpu in case.machine.gpus or () if gpu in gpus or gpu.bus_id in (case.finding.place.gpus or ())
        )
        assert not gpus or case.remedy.idle == idle.label, case


def test_nothing_that_acts_on_the_host_is_to_be_run_in_a_container() -> None:
    for case in cases():
        if case.here in IN_CONTAINER:
            assert not any(step.program.on_host for command in commands(case) for step in steps(command)), case
            assert case.remedy.run is None or case.here in case.remedy.works_in, case
            assert case.here in case.remedy.works_in or case.remedy.text.startswith("On the host: "), case


def test_no_part_of_a_command_is_left_open() -> None:
    assert not [str(case) for case in cases() for text in (*commands(case), case.remedy.text) if GPUS in text]


HARM = {
    "a folder is removed with all in it": r"\brm\s+-\w*[rR]|\brm\s+--recursive",
    "a node is opened to everybody": r"chmod|mode 0?666",
    "it makes /dev/nvidia0, not what is missing": r"nvidia-modprobe -c 0(?! )(?<!-u -c 0)",
    "it is for all GPUs": r"nvidia-smi (?!-i |--gpu-reset -i )-(?:mig|pm|c|r)\b|--gpu-reset(?! -i)",
    "the IOMMU protects memory": r"IOMMU (?:\w+ )?off",
}


@pytest.mark.parametrize("harm", HARM)
def test_no_text_harms(harm: str) -> None:
    shown = [(str(case), (case.remedy.text, *commands(case))) for case in cases()]
    shown += [(check, tuple(entry.values())) for check, entry in texts().items()]
    shown += [
        (cause.cause, (cause.remedy.text, cause.remedy.look or "", cause.remedy.run or "", cause.see))
        for cause in known_causes()
    ]
    shown += [
        (name, (remedy.text, remedy.run or "", remedy.look or "")) for name, remedy in catalogue().remedies.items()
    ]
    assert [name for name, parts in shown for text in parts if re.search(HARM[harm], text)] == []


class TestWhereTheProcessRuns:
    @pytest.mark.parametrize("here", Site)
    def test_its_signs_say_so(self, here: Site) -> None:
        assert site(at(healthy(), here)) is here

    def test_what_a_container_cannot_do_is_for_the_host(self) -> None:
        remedy = Remedy(
            text="Load it.", look="dmesg", run="modprobe nvidia", needs=(Need.ROOT,), works_in=(Site.HOST, Site.JOB)
        )
        here = fitted_remedy(at(healthy(), Site.POD), NODE, remedy)
        assert (here.text, here.look, here.run) == ("On the host: Load it (modprobe nvidia).", None, None)

    def test_on_the_host_nothing_changes(self) -> None:
        remedy = Remedy(text="Load it.", run="modprobe nvidia", needs=(Need.ROOT,), works_in=(Site.HOST, Site.JOB))
        assert fitted_remedy(at(healthy(), Site.JOB), NODE, remedy) == remedy


class TestTheGpusOfARemedy:
    RESET = Remedy(text="Reset it.", run=f"nvidia-smi --gpu-reset -i {GPUS}", needs=(Need.ROOT, Need.GPU_RESET))

    def test_findings_of_several_gpus_name_all_of_them(self) -> None:
        machine = shipped("hgx-h200x4")
        first, second, *_ = machine.gpus or ()
        remedy = fitted_remedy(machine, on_gpus([first, second]), self.RESET)
        assert remedy.run == f"nvidia-smi --gpu-reset -i {first.bus_id},{second.bus_id}"
        assert (remedy.idle, remedy.touches) == ("GPU0-1", ())

    def test_gpus_that_are_reset_together_are_named(self) -> None:
        """Before Ampere, NVLink joins what a reset takes."""
        machine = patched(shipped("hgx-h200x4"), "gpus[*].nvml", compute_capability=(7, 0))
        gpus = machine.gpus or ()
        remedy = fitted_remedy(machine, on_gpus(gpus[:1]), self.RESET)
        assert remedy.run == f"nvidia-smi --gpu-reset -i {','.join(gpu.bus_id for gpu in gpus)}"
        assert (remedy.idle, remedy.touches) == ("GPU0-3", tuple(gpu.bus_id for gpu in gpus[1:]))

    def test_a_hopper_is_reset_alone(self) -> None:
        machine = patched(shipped("hgx-h200x4"), "gpus[*].nvml", compute_capability=(9, 0))
        assert reset_together(machine, (machine.gpus or ())[2:3]) == (machine.gpus or ())[2:3]

    def test_without_a_gpu_there_is_no_command(self) -> None:
        assert fitted_remedy(shipped("hgx-h200x4"), on_numa([0]), self.RESET).run is None

    def test_a_reload_of_the_driver_interrupts_all_gpus(self) -> None:
        machine = shipped("hgx-h200x4")
        gpus = machine.gpus or ()
        reload = Remedy(text="Reload the driver.", needs=(Need.ROOT, Need.DRIVER_RELOAD))
        remedy = fitted_remedy(machine, on_gpus(gpus[:1]), reload)
        assert (remedy.idle, remedy.touches) == ("GPU0-3", tuple(gpu.bus_id for gpu in gpus[1:]))


class TestCommands:
    @pytest.mark.parametrize(
        "command",
        [
            "reboot",
            "nvidia-smi -x",
            "nvidia-smi -i",
            "rm -r /dev/nvidia-caps-imex-channels",
            "rm /dev/nvidia-caps-imex-channels",
            "rm /dev/nvidia0 /etc/passwd",
            "modprobe nvidia; reboot",
            "chmod 0666 /dev/nvidia0",
            "mknod '/dev/nvidia0",
        ],
    )
    def test_what_is_not_documented_is_none(self, command: str) -> None:
        with pytest.raises(UndocumentedError):
            steps(command)

    def test_each_program_of_a_line_is_a_step(self) -> None:
        line = "rm /dev/nvidia3 && nvidia-modprobe -c 3 | grep -i nvrm"
        assert [step.name for step in steps(line)] == ["rm", "nvidia-modprobe", "grep"]
