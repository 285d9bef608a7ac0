"""What people and programs read: text that folds over many nodes, JSON, Nagios, Prometheus, JUnit."""

from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree

from egmctl.doctor.check import failed, passed, skipped
from egmctl.doctor.registry import CHECKS
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Finding, Guard, Place, PlaceKind, Remedy, Status
from egmctl.report.doctor_json import doctor_json
from egmctl.report.doctor_monitoring import junit, nagios, prom
from egmctl.report.doctor_text import doctor_text, explain_text
from egmctl.report.picture import picture
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


class TestText:
    def test_problems_come_first_and_the_counts_last(self) -> None:
        assert doctor_text(SICK).plain == (
            "MODELLED from public documents, no such node was read: gb200-nvl4\n"
            "Platform: EGM, single-node multi-GPU: 4 NVIDIA GB200 on aarch64\n"
            "\n"
            "FAIL     dev.cgroup-restricted  GPU3: the device cgroup denies /dev/nvidia3\n"
            "         cause  Slurm's ConstrainDevices took it away from job 42\n"
            "         fix    Give the step all GPUs of the node and choose with\n"
            "                CUDA_VISIBLE_DEVICES.\n"
            "                $ srun --gpu-bind=none\n"
            "FAIL     fabric.state  the fabric is broken\n"
            "         fix    Start anew. (as root, needs a reboot)\n"
            "WARN     gpu.persistence  GPU0-3: persistence mode is off\n"
            "         cause  each first start of a process waits for the GPUs (medium\n"
            "                confidence)\n"
            "         fix    Turn it on. (as root)\n"
            "                $ nvidia-smi -pm 1\n"
            "UNKNOWN  c2c.link  NVML is too old to say\n"
            "PASS     1 check\n"
            "SKIP     2 checks (-v says more): not an EGM platform (2)\n"
            "7 checks: 2 fail, 1 warn, 1 unknown, 1 pass, 2 skip\n"
        )

    def test_many_that_could_not_be_told_are_one_line(self) -> None:
        advised = dataclasses.replace(UNTOLD, remedy=Remedy(text="Ask the kernel log."))
        many = diagnosis(*(check(f"a.{i}", UNTOLD) for i in range(6)), check("b.two", advised))
        assert doctor_text(many).plain.splitlines()[3:] == [
            "UNKNOWN  b.two  NVML is too old to say",
            "         fix    Ask the kernel log.",
            "UNKNOWN  6 checks (-v says why): a.0, a.1, a.2, a.3, a.4, a.5",
            "7 checks: 0 fail, 0 warn, 7 unknown, 0 pass, 0 skip",
        ]

    def test_of_the_skipped_checks_the_common_reasons_are_told(self) -> None:
        others = (skipped("no NIC"), skipped("no MIG"))
        several = diagnosis(*(check(f"a.{i}", found) for i, found in enumerate((ABSENT, ABSENT, *others))))
        line = "SKIP     4 checks (-v says more): not an EGM platform (2); 2 other reasons"
        assert doctor_text(several).plain.splitlines()[3] == line
        different = diagnosis(*(check(f"a.{i}", found) for i, found in enumerate(others)))
        assert doctor_text(different).plain.splitlines()[3] == "SKIP     2 checks (-v says why)"

    def test_brief_is_a_line_a_problem(self) -> None:
        assert doctor_text(SICK, brief=True).plain.splitlines()[1:] == [
            "FAIL     dev.cgroup-restricted  GPU3: the device cgroup denies /dev/nvidia3",
            "FAIL     fabric.state  the fabric is broken",
            "WARN     gpu.persistence  GPU0-3: persistence mode is off",
            "7 checks: 2 fail, 1 warn, 1 unknown, 1 pass, 2 skip",
        ]

    def test_verbose_shows_everything_with_its_evidence(self) -> None:
        lines = doctor_text(SICK, verbose=1).plain.splitlines()
        assert "         seen   access(/dev/nvidia3): EPERM" in lines
        assert "PASS     env.fine  as it should be" in lines
        assert "         note   4 GPUs are there" in lines
        assert "SKIP     egm.route  not an EGM platform" in lines

    def test_no_line_is_wider_than_a_page_but_a_command(self) -> None:
        long = failed("word " * 60, Remedy(text="do " * 60, command="x" * 100), cause="so " * 60)
        for line in doctor_text(diagnosis(check("a.one", long)), verbose=1).plain.splitlines():
            assert len(line) <= 80 or line.strip() == "$ " + "x" * 100

    def test_strings_of_the_machine_cannot_steer_a_terminal(self) -> None:
        hostile = failed(HOSTILE, Remedy(text=HOSTILE, command=HOSTILE), cause=HOSTILE, note=HOSTILE)
        for verbose in (0, 1):
            text = doctor_text(diagnosis(check("a.one", hostile)), verbose=verbose).plain
            assert all(line.isprintable() for line in text.split("\n"))

    def test_it_names_no_host_so_that_the_outputs_of_many_fold_together(self) -> None:
        machine = patched(healthy(), "host", hostname="node-0815")
        for verbose, brief in ((0, False), (1, False), (0, True)):
            assert "0815" not in doctor_text(diagnosis(*CHECKS, machine=machine), verbose=verbose, brief=brief).plain

    def test_explain_tells_why_how_and_what_to_do(self) -> None:
        text = explain_text(check("a.one", guards=[Guard.EGM, Guard.P2P])).plain
        assert text.startswith("a.one: the title of a.one\nguards egm, p2p\n")
        assert "\nHow to fix it\n  With care.\n" in text


class TestJson:
    def test_the_document_says_what_was_asked_and_found(self) -> None:
        scope = Scope(gpus=(GPUS[1].bus_id,), purposes=(Guard.EGM,))
        document = json.loads(doctor_json(diagnosis(check("a.one", DENIED), scope=scope)))
        assert (document["schema"], document["exit_code"], document["errors"]) == ("egmctl.doctor/1", 1, [])
        result = document["result"]
        assert (result["gpus_asked"], result["numa_asked"], result["purposes"]) == ([GPUS[1].bus_id], None, ["egm"])
        assert result["counts"] == {"fail": 1, "warn": 0, "unknown": 0, "pass": 0, "skip": 0}
        (finding,) = result["findings"]
        assert finding["place"] == {"kind": "gpu", "ids": [GPUS[3].bus_id], "label": "GPU3"}
        assert finding["evidence"] == [{"source": "access(/dev/nvidia3)", "value": "EPERM", "errno": "EPERM"}]
        assert finding["remedy"]["command"] == "srun --gpu-bind=none"

    def test_nothing_determined_is_an_error_in_it(self) -> None:
        document = json.loads(doctor_json(diagnosis(check("a.one", ABSENT))))
        assert (document["exit_code"], document["errors"][0]["code"]) == (3, "nothing")


class TestNagios:
    def test_state_and_data_in_the_first_line(self) -> None:
        lines = nagios(SICK).splitlines()
        assert lines[0] == (
            "EGMCTL CRITICAL - 2 fail, 1 warn, 1 unknown, 1 pass, 2 skip | fail=2 warn=1 unknown=1 pass=1 skip=2"
        )
        assert lines[2] == "FAIL fabric.state: the fabric is broken. Start anew."
        assert len(lines) == 4

    def test_other_states(self) -> None:
        assert nagios(diagnosis(check("a.one", FINE))).startswith("EGMCTL OK - ")
        assert nagios(diagnosis(check("a.one", PERSISTENCE))).startswith("EGMCTL WARNING - ")
        assert nagios(diagnosis(check("a.one", UNTOLD))).startswith("EGMCTL UNKNOWN - None of the checks could tell")

    def test_a_bar_in_a_string_begins_no_data(self) -> None:
        lines = nagios(diagnosis(check("a.one", failed(HOSTILE, Remedy(text="x"))))).splitlines()
        assert len(lines) == 2
        assert "|" not in lines[1]


class TestProm:
    def test_one_sample_a_check_and_place_the_gravest(self) -> None:
        samples = [line for line in prom(SICK).splitlines() if line.startswith("egmctl_doctor_check{")]
        assert 'egmctl_doctor_check{check="dev.cgroup-restricted",place="GPU3"} 2' in samples
        assert 'egmctl_doctor_check{check="gpu.persistence",place="GPU0-3"} 1' in samples
        assert not any("egm.route" in sample for sample in samples)
        twice = prom(diagnosis(check("a.one", FINE, REBOOT, FINE)))
        assert twice.count('check="a.one"') == 1
        assert 'check="a.one",place=""} 2' in twice

    def test_labels_are_escaped(self) -> None:
        place = Place(kind=PlaceKind.NIC, ids=("x",), label=HOSTILE)
        (sample,) = [
            line
            for line in prom(diagnosis(check("a.one", dataclasses.replace(FINE, place=place)))).splitlines()
            if line.startswith("egmctl_doctor_check{")
        ]
        assert sample == r'egmctl_doctor_check{check="a.one",place="a\\x1b[31m\"<&>|\\\\n\\u202e"} 0'


class TestJunit:
    def test_statuses(self) -> None:
        suite = ElementTree.fromstring(junit(SICK))[0]  # noqa: S314
        assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("8", "2", "3")
        names = {case.get("name"): case for case in suite}
        assert names["dev.cgroup-restricted [GPU3]"].find("failure") is not None
        assert names["gpu.persistence [GPU0-3]"].find("failure") is None
        assert names["c2c.link"].find("skipped") is not None

    def test_a_warning_is_a_failure_where_that_is_strict(self) -> None:
        suite = ElementTree.fromstring(junit(dataclasses.replace(SICK, strict=True)))[0]  # noqa: S314
        assert suite.get("failures") == "3"

    def test_any_string_is_well_formed(self) -> None:
        hostile = [failed(HOSTILE, Remedy(text=HOSTILE, command=HOSTILE)), passed(HOSTILE), _with(ABSENT, HOSTILE)]
        root = ElementTree.fromstring(junit(diagnosis(check("a.one", *hostile))))  # noqa: S314
        assert len(root[0]) == 3


class TestPicture:
    def test_it_shows_the_text_and_fetches_nothing(self) -> None:
        svg = picture(doctor_text(SICK), "egmctl doctor")
        root = ElementTree.fromstring(svg)  # noqa: S314
        shown = "".join(root.itertext()).replace("\xa0", " ")
        for line in doctor_text(SICK).plain.splitlines():
            for word in line.split():
                assert word in shown
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")

    def test_any_string_is_well_formed(self) -> None:
        hostile = failed(HOSTILE, Remedy(text=HOSTILE, command=HOSTILE))
        ElementTree.fromstring(picture(doctor_text(diagnosis(check("a.one", hostile))), "x"))  # noqa: S314


def _with(finding: Finding, summary: str) -> Finding:
    return dataclasses.replace(finding, summary=summary)


def test_every_view_of_a_node_without_gpus() -> None:
    machine = dataclasses.replace(shipped("dgx-h100"), gpus=None, pairs=None)
    empty = diagnosis(check("a.one", ABSENT), machine=machine)
    assert empty.counts[Status.SKIP] == 1
    for view in (doctor_text, doctor_json, nagios, prom, junit):
        assert view(empty)
