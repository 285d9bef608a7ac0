"""The outputs of doctor: text that folds over many nodes, JSON, Nagios, Prometheus, JUnit."""

from __future__ import annotations

import dataclasses
import json
import re
from xml.etree import ElementTree

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.findings import failed
from egmctl.doctor.runner import CHECKS
from egmctl.errors import ExitCode
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Guard, Status, on_gpus, on_numa
from egmctl.model.listing import CheckEntry, CheckList
from egmctl.model.remedy import Remedy
from egmctl.report.document import Level
from egmctl.report.exports.json import result_json
from egmctl.report.exports.junit import doctor_junit
from egmctl.report.exports.nagios import doctor_nagios
from egmctl.report.exports.prom import doctor_prom
from egmctl.report.kinds import DOCTOR, Format
from egmctl.report.render.text import text
from egmctl.report.views.doctor import checks_document, doctor_document
from tests.answers import diagnose, render
from tests.doctor.builders import ABSENT, DENIED, FINE, GPUS, PERSISTENCE, REBOOT, UNTOLD, check, diagnosis
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, shipped

SICK = diagnosis(
    check("env.fine", FINE),
    check("gpu.persistence", PERSISTENCE),
    check("egm.route", ABSENT),
    check("egm.capability", ABSENT),
    check("c2c.link", UNTOLD),
    check("dev.cgroup-restricted", FINE, DENIED),
    check("fabric.state", REBOOT),
)
HOSTILE = 'a\x1b[31m"<&>|\\\n\u202e'


def entry(check_id: str, *guards: Guard) -> CheckEntry:
    title = f"the title of {check_id}"
    return CheckEntry(
        id=check_id,
        title=title,
        guards=guards,
        blocks=guards,
        sections=(),
        why="Because.",
        read="From a file.",
        fix="With care.",
    )


def doctor_text(diagnosis: Diagnosis, *, level: Level = Level.NORMAL, width: int = 80) -> str:
    return text(doctor_document(diagnosis), level=level, width=width).plain


class TestText:
    def test_the_answer_comes_first_then_each_problem_with_what_to_do(self) -> None:
        assert doctor_text(SICK) == (
            "MODEL of gb200-tray, built from public documentation, not captured from hardware\n"
            "PROBLEMS: 2 failures and 1 warning; 1 check passed, 1 not determined, 2 do not\n"
            "  apply\n"
            "EGM, single-node multi-GPU: 4 NVIDIA GB200 on aarch64\n"
            "\n"
            "FAIL  GPU3: the device cgroup denies /dev/nvidia3  [dev.cgroup-restricted]\n"
            "      cause  Slurm's ConstrainDevices took it away from job 42\n"
            "      fix    Give the step all GPUs of the node and choose with\n"
            "             CUDA_VISIBLE_DEVICES.\n"
            "      run    $ srun --gpu-bind=none\n"
            "FAIL  the fabric is broken  [fabric.state]\n"
            "      fix  Start anew (as root, needs a reboot).\n"
            "WARN  GPU0-3: persistence mode is off  [gpu.persistence]\n"
            "      cause  each first start of a process waits for the GPUs (medium\n"
            "             confidence)\n"
            "      fix    Turn it on (as root).\n"
            f"      run    $ nvidia-smi -i {','.join(gpu.bus_id for gpu in GPUS)} -pm 1\n"
            "\n"
            "Not determined (-v says why): c2c.link\n"
        )

    def test_a_healthy_node_takes_at_most_four_lines(self) -> None:
        shown = doctor_text(diagnose(shipped("hgx-h200x4"), EVERYTHING, CHECKS))
        # The recording is older than what these two read.
        first, second, _, unknown = shown.splitlines()
        assert re.fullmatch(r"OK: \d+ checks passed, 2 not determined, \d+ do not apply", first)
        assert unknown == "Not determined (-v says why): env.limits, cpu.governor"
        assert second == "no EGM: 4 NVIDIA H200 on x86_64, no NVLink-C2C"

    def test_a_warning_counts_where_there_is_no_gpu_too(self) -> None:
        small = patched(healthy(), "confinement", shm_total_bytes=512 << 20, shm_free_bytes=512 << 20)
        found = diagnose(patched(small, "", gpus=(), pairs=()), EVERYTHING, CHECKS)
        number = sum(finding.status in (Status.WARN, Status.FAIL) for finding in found.findings)
        assert found.exit_code == ExitCode.NOTHING
        assert number
        assert f"there is no NVIDIA GPU on this machine; {number} warning" in found.answer.sentence

    def test_a_machine_of_which_most_is_unknown_is_not_ok(self) -> None:
        many = diagnosis(check("a.fine", FINE), *(check(f"a.{i}", UNTOLD) for i in range(6)))
        assert doctor_text(many).splitlines()[1:] == [
            "NOT DETERMINED: 6 of 7 checks had no data; 1 check passed",
            "Next: take a new 'egmctl snapshot' of the node; -v says what this one does not",
            "      state",
            "EGM, single-node multi-GPU: 4 NVIDIA GB200 on aarch64",
            "",
            "Not determined (-v says why): a.0, a.1, a.2, a.3, a.4, a.5",
        ]
        assert many.exit_code == ExitCode.NOTHING

    def test_advice_on_what_is_unknown_is_shown(self) -> None:
        advised = dataclasses.replace(UNTOLD, remedy=Remedy(text="Ask the kernel log."))
        shown = doctor_text(diagnosis(check("a.one", FINE), check("a.two", FINE), check("b.two", advised)))
        assert shown.endswith("UNKNOWN  NVML is too old to say  [b.two]\n         fix  Ask the kernel log.\n")

    def test_a_root_cause_names_what_it_explains_and_each_problem_is_listed_once(self) -> None:
        route = failed("no GPU can route EGM", Remedy(text="Give all."), place=on_numa([1]))
        elsewhere = failed("no link", Remedy(text="Look."), place=on_gpus(GPUS[:1]))
        found = diagnosis(
            check("egm.cgroup-route", route), check("dev.cgroup-restricted", DENIED), check("nvlink.links", elsewhere)
        )
        shown = doctor_text(found)
        assert "PROBLEMS: 2 failures" in shown
        assert "explains  FAIL NUMA 1: no GPU can route EGM [egm.cgroup-route]" in shown
        assert shown.count("FAIL ") == 3

    def test_brief_is_a_line_a_problem(self) -> None:
        assert doctor_text(SICK, level=Level.SUMMARY).splitlines()[4:] == [
            "FAIL  GPU3: the device cgroup denies /dev/nvidia3  [dev.cgroup-restricted]",
            "FAIL  the fabric is broken  [fabric.state]",
            "WARN  GPU0-3: persistence mode is off  [gpu.persistence]",
        ]

    def test_verbose_shows_every_check_and_the_evidence_of_problems(self) -> None:
        shown = doctor_text(SICK, level=Level.VERBOSE)
        assert "seen   access(/dev/nvidia3): EPERM" in shown
        lines = [" ".join(line.split()) for line in shown.splitlines()]
        assert {"env 1: fine", "egm 2: route, capability"} <= {*lines}, "a line per area"
        everything = [" ".join(line.split()) for line in doctor_text(SICK, level=Level.ALL).splitlines()]
        assert "env.fine node as it should be; 4 GPUs are there" in everything
        assert "egm.route node not an EGM platform" in everything

    def test_the_page_has_causes_then_where_they_are_then_all_checks_by_area_with_faults_first(self) -> None:
        page = str(render(SICK, Format.HTML))
        areas = re.findall(r'<span class="strong">([^<]*)</span>.*?<span class="note">([^<]*)</span>', page)
        places = [page.index(part) for part in ('class="finding', "<svg", "checks by area")]
        assert places == sorted(places)
        wrong = ["failed" in note or "warned" in note for _, note in areas]
        assert wrong == sorted(wrong, reverse=True)
        assert any(wrong)
        assert re.findall(r'class="sentence">([^<]*)<', page) == ["GPU3: the device cgroup denies /dev/nvidia3"]
        assert "2 failures and 1 warning" in re.findall(r'<p class="why">([^<]*)<', page)[0], "smaller, below it"

    @pytest.mark.parametrize("width", [60, 80, 200])
    def test_no_line_is_wider_than_the_terminal_but_a_command(self, width: int) -> None:
        long = failed("word " * 60, Remedy(text="do " * 60, look="y" * 300, run="x" * 300), cause="so " * 60)
        for line in doctor_text(diagnosis(check("a.one", long)), level=Level.ALL, width=width).splitlines():
            assert len(line) <= width or line.split() in (["look", "$", "y" * 300], ["run", "$", "x" * 300])

    def test_it_names_no_host_so_that_the_outputs_of_many_fold_together(self) -> None:
        machine = patched(healthy(), "host", hostname="node-0815")
        for level in Level:
            assert "0815" not in doctor_text(diagnosis(*CHECKS, machine=machine), level=level)

    def test_explain_tells_why_how_and_what_to_do(self) -> None:
        shown = text(checks_document(CheckList(checks=(entry("a.one", Guard.EGM, Guard.P2P),)))).plain
        assert shown.startswith("a.one: the title of a.one\nguards egm, p2p\n")
        assert "\nHow to fix it\n  With care.\n" in shown

    def test_the_list_of_checks_has_a_line_each(self) -> None:
        shown = text(checks_document(CheckList(checks=(entry("a.one", *Guard), entry("b.two", Guard.EGM))))).plain
        assert [line.split() for line in shown.splitlines()[1:]] == [
            ["a.one", "the", "title", "of", "a.one", "all"],
            ["b.two", "the", "title", "of", "b.two", "egm"],
        ]


@pytest.mark.parametrize("format", DOCTOR.formats)
def test_strings_of_the_machine_are_data_in_every_format(format: Format) -> None:
    hostile = failed(HOSTILE, Remedy(text=HOSTILE, look=HOSTILE, run=HOSTILE), cause=HOSTILE, note=HOSTILE)
    for verbose in (0, 1, 2):
        shown = str(render(diagnosis(check("a.one", hostile)), format, verbose=verbose))
        assert all(line.isprintable() for line in shown.split("\n"))
        if format in (Format.JUNIT, Format.SVG):
            ElementTree.fromstring(shown)  # noqa: S314


class TestJson:
    def test_the_document_says_what_was_asked_and_found(self) -> None:
        scope = Scope(gpus=(GPUS[1].bus_id,), purposes=(Guard.EGM,))
        document = json.loads(result_json(diagnosis(check("a.one", DENIED), scope=scope)))
        assert (document["schema"], document["exit_code"], document["errors"]) == ("egmctl.doctor/1", 1, [])
        result = document["result"]
        assert (result["gpus_asked"], result["numa_asked"], result["purposes"]) == ([GPUS[1].bus_id], None, ["egm"])
        assert result["counts"] == {"fail": 1, "warn": 0, "unknown": 0, "note": 0, "pass": 0, "skip": 0}
        (finding,) = result["findings"]
        assert finding["place"] == {"kind": "gpu", "ids": [GPUS[3].bus_id], "label": "GPU3"}
        assert finding["evidence"] == [{"source": "access(/dev/nvidia3)", "value": "EPERM", "errno": "EPERM"}]
        assert finding["remedy"]["run"] == "srun --gpu-bind=none"

    def test_nothing_determined_is_an_error_in_it(self) -> None:
        document = json.loads(result_json(diagnosis(check("a.one", ABSENT))))
        assert (document["exit_code"], document["errors"][0]["code"]) == (3, "nothing")


class TestNagios:
    def test_the_first_line_names_the_check_and_has_the_data(self) -> None:
        lines = doctor_nagios(SICK).splitlines()
        assert lines[0] == (
            "EGMCTL CRITICAL - PROBLEMS: dev.cgroup-restricted: GPU3: the device cgroup denies /dev/nvidia3 (+2 more)"
            " | fail=2 warn=1 unknown=1 note=0 pass=1 skip=2"
        )
        assert lines[2] == "FAIL fabric.state: the fabric is broken. Start anew (as root, needs a reboot)."
        assert len(lines) == 4

    def test_other_states(self) -> None:
        assert doctor_nagios(diagnosis(check("a.one", FINE))).startswith("EGMCTL OK - ")
        assert doctor_nagios(diagnosis(check("a.one", PERSISTENCE))).startswith("EGMCTL WARNING - ")
        assert doctor_nagios(diagnosis(check("a.one", UNTOLD))).startswith("EGMCTL UNKNOWN - NOT DETERMINED")

    def test_a_bar_in_a_string_begins_no_data(self) -> None:
        lines = doctor_nagios(diagnosis(check("a.one", failed(HOSTILE, Remedy(text="x"))))).splitlines()
        assert len(lines) == 2
        assert "|" not in lines[1]


class TestProm:
    def test_one_sample_a_check_the_gravest(self) -> None:
        samples = [line for line in doctor_prom(SICK).splitlines() if line.startswith("egmctl_doctor_check{")]
        assert 'egmctl_doctor_check{check="dev.cgroup-restricted"} 2' in samples
        assert 'egmctl_doctor_check{check="gpu.persistence"} 1' in samples
        assert not any("egm.route" in sample for sample in samples)
        twice = doctor_prom(diagnosis(check("a.one", FINE, REBOOT, FINE)))
        assert twice.count('egmctl_doctor_check{check="a.one"') == 1
        assert 'egmctl_doctor_check{check="a.one"} 2' in twice

    def test_which_series_there_are_does_not_depend_on_the_state_of_a_gpu(self) -> None:
        def series(found: Diagnosis) -> dict[str, str]:
            return dict(line.rsplit(" ", 1) for line in doctor_prom(found).splitlines() if not line.startswith("#"))

        well, sick = (series(diagnosis(check("a.one", *those))) for those in ((FINE,), (FINE, DENIED)))
        assert well.keys() == sick.keys()
        label = f'egmctl_doctor_gpu_check{{check="a.one",gpu="GPU3",bus_id="{GPUS[3].bus_id}"}}'
        assert (well[label], sick[label]) == ("0", "2")
        other = f'egmctl_doctor_gpu_check{{check="a.one",gpu="GPU2",bus_id="{GPUS[2].bus_id}"}}'
        assert sick[other] == "0"


class TestJunit:
    def test_statuses(self) -> None:
        suite = ElementTree.fromstring(doctor_junit(SICK))[0]  # noqa: S314
        assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "3", "3"), (
            "the answer is a case too"
        )
        names = {case.get("name"): case for case in suite}
        assert names["dev.cgroup-restricted [GPU3]"].find("failure") is not None
        assert names["gpu.persistence [GPU0-3]"].find("failure") is None
        assert names["c2c.link"].find("skipped") is not None

    def test_a_warning_is_a_failure_where_that_is_strict(self) -> None:
        suite = ElementTree.fromstring(doctor_junit(dataclasses.replace(SICK, strict=True)))[0]  # noqa: S314
        assert suite.get("failures") == "4"


class TestPicture:
    def test_it_shows_the_text_and_fetches_nothing(self) -> None:
        svg = str(render(SICK, Format.SVG))
        root = ElementTree.fromstring(svg)  # noqa: S314
        shown = "".join(root.itertext()).replace("\xa0", " ")
        for line in doctor_text(SICK).splitlines():
            for word in line.split():
                assert word in shown
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_every_view_of_a_node_without_gpus() -> None:
    machine = dataclasses.replace(shipped("dgx-h100"), gpus=None, pairs=None)
    empty = diagnosis(check("a.one", ABSENT), machine=machine)
    assert empty.counts[Status.SKIP] == 1
    for format in DOCTOR.formats:
        assert str(render(empty, format))
