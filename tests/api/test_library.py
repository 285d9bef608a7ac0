"""``import egmctl``: the examples of docs/library.md run, the records are those of the schemas, and it loads lazily."""

from __future__ import annotations

import doctest
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import egmctl
from tests.conftest import ROOT, command_environment
from tests.fake.plugin import MakeFakeNode

PAGE = ROOT / "docs" / "library.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_sessions_of_the_page_are_what_python_answers() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert (failed, tried >= 8) == (0, True)


@pytest.mark.long
def test_the_scripts_of_the_page_run_on_a_node(fake_node: MakeFakeNode, tmp_path: Path) -> None:
    assert len(SCRIPTS) == 2
    node = fake_node("hgx-h200x4")
    script = tmp_path / "script.py"
    answers = []
    for text in SCRIPTS:
        script.write_text(text)
        environment = command_environment({**node.environment(), "PYTHONPATH": str(ROOT)})
        done = subprocess.run(
            [sys.executable, script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        answers.append(done.stdout.splitlines())
    measured, loaded = answers
    assert measured[0].count("device_to_device_memcpy_write_ce") == 2
    assert [line.split()[3] for line in measured[1:3]] == ["ok", "ok"]
    assert loaded[0].split() == ["bench", measured[-1], "2"]
    assert "FAKE NVIDIA H200" in loaded[1], "the saved run holds the machine"


def test_each_record_is_the_one_of_the_schema_that_the_page_names() -> None:
    machine = egmctl.read_machine("hgx-h200x4")
    results = {
        "Machine": machine,
        "Topology": egmctl.topology_of(machine),
        "Diagnosis": egmctl.Doctor().diagnose(machine),
        "Explanations": egmctl.explain("cuMemCreate", 800, machine),
        "RunReport": egmctl.load_result(RUN).result,
    }
    named = dict(
        re.findall(r"^\|.*?\| `([A-Z]\w+)`:.*\| `(egmctl\.[a-z]+/[0-9]+)` \|$", PAGE.read_text(), re.MULTILINE)
    )
    assert named.keys() == results.keys()
    for kind, result in results.items():
        assert type(result).__name__ == kind
        assert json.loads(egmctl.to_json(result))["schema"] == named[kind]  # type: ignore[arg-type]


def test_what_is_written_is_loaded_again(tmp_path: Path) -> None:
    diagnosis = egmctl.Doctor(purposes="p2p").diagnose(egmctl.read_machine("hgx-h200x4"))
    file = tmp_path / "diagnosis.json"
    file.write_text(egmctl.to_json(diagnosis))
    assert egmctl.load_result(file).result == diagnosis


RUN = ROOT / "tests" / "data" / "runs" / "idle.json.gz"


def test_a_file_is_loaded_as_the_kind_that_the_program_names(tmp_path: Path) -> None:
    report = egmctl.load_result(RUN, egmctl.RunReport)
    assert report == egmctl.load_result(RUN).result
    with pytest.raises(egmctl.EgmctlError, match=r"idle\.json\.gz holds a RunReport, not a Diagnosis$"):
        egmctl.load_result(RUN, egmctl.Diagnosis)
    failed = tmp_path / "failed.json"
    error = {"code": "nothing", "message": "there is no GPU"}
    failed.write_text(
        json.dumps(
            {"schema": "egmctl.error/1", "tool": "egmctl 0.1.0", "exit_code": 3, "machine": None, "errors": [error]}
        )
    )
    with pytest.raises(egmctl.EgmctlError, match=r"failed\.json holds no RunReport: there is no GPU$"):
        egmctl.load_result(failed, egmctl.RunReport)


WITHOUT_THE_COMMAND_LINE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "click", "rich"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import egmctl

machine = egmctl.read_machine("hgx-h200x4")
report = egmctl.load_result(sys.argv[1], egmctl.RunReport)
results = [egmctl.Doctor().diagnose(machine), egmctl.topology_of(machine), egmctl.judge_run(report, machine)]
egmctl.Bench(suites=["quick"]).plan(machine)
egmctl.read_machine()
for result in results:
    print(type(result).__name__, len(egmctl.to_json(result)) > 1000, len(result._repr_html_()) > 1000)
"""


@pytest.mark.processes
def test_it_works_where_typer_and_rich_are_not_there() -> None:
    command = [sys.executable, "-c", WITHOUT_THE_COMMAND_LINE, str(RUN)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Diagnosis True True\nTopology True True\nRunReport True True\n"


def test_a_library_call_says_what_the_command_says() -> None:
    with pytest.raises(egmctl.EgmctlError, match=r"^--samples 0: it must be from 1 to 1000$"):
        egmctl.Bench(samples=0)
    with pytest.raises(egmctl.EgmctlError, match="srun or mpirun"):
        egmctl.Bench(suites=["fabric"]).plan(egmctl.read_machine("gb200-tray"))
    with pytest.raises(egmctl.EgmctlError, match="9"):
        egmctl.topology_of(egmctl.read_machine("gb200-tray"), gpus="9")


def test_a_recorded_machine_is_planned_for_and_not_measured() -> None:
    machine = egmctl.read_machine("gb200-tray")
    bench = egmctl.Bench(suites=["quick"])
    plan = bench.plan(machine)
    assert plan.runnable
    with pytest.raises(egmctl.EgmctlError, match="gb200-tray is not this node"):
        bench.run(plan, machine)


def test_redacted_is_without_the_names_of_the_machine() -> None:
    machine = egmctl.read_machine("gb200-tray")
    assert egmctl.Doctor().diagnose(machine, redacted=True).machine.origin.redacted
    assert egmctl.topology_of(machine, gpus="2,3", redacted=True).machine.origin.redacted
    assert list(egmctl.topology_of(machine, gpus="2,3", redacted=True).gpus) == ["GPU2", "GPU3"]


@pytest.mark.processes
def test_importing_it_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import egmctl; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['egmctl']\n"


def test_each_public_name_is_there_and_is_no_package_of_that_name() -> None:
    for name in egmctl.__all__:
        assert getattr(egmctl, name) is not None
    packages = {module.name for module in pkgutil.iter_modules(egmctl.__path__)}
    assert not packages & set(egmctl.__all__), "importing the package would put it into the name's place"
    with pytest.raises(AttributeError, match="valid are Bench, Bringup, "):
        getattr(egmctl, "non" + "sense")


def test_the_page_names_all_that_is_public() -> None:
    page = PAGE.read_text()
    missing = [name for name in egmctl.__all__ if not re.search(rf"\b{name}\(|egmctl\.{name}\b|`{name}", page)]
    assert missing in (["Profiles", "__version__"], [])
