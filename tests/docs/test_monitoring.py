"""What SREs run beside egmctl: a dashboard and a plugin that read what it prints, and manifests of real kinds."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from egmctl.facts import replay
from egmctl.report.exports.prom import bringup_prom
from egmctl.units import MIB
from egmctl.verdict.bringup import bringup_answer
from tests.conftest import ROOT, RunEgmctl, ended
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.report.runs import judged
from tests.report.runs import run as measured

EXAMPLES = ROOT / "docs/examples"
DASHBOARD = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
PLUGIN = json.loads((EXAMPLES / "node-problem-detector.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
LABELS_OF_PROMETHEUS = {"instance", "job", "file"}
"""Labels that node_exporter or the scrape adds."""


def exported() -> dict[str, set[str]]:
    """Return the labels of each metric that a bring-up with a measured run writes."""
    run_report = judged(measured("hgx-h200x4"))
    from egmctl.api.doctor import Doctor

    diagnosis = Doctor().diagnose(shipped("hgx-h200x4"), redacted=True)
    text = bringup_prom(bringup_answer(diagnosis, run_report))
    families = text_string_to_metric_families(text)
    return {family.name: {name for sample in family.samples for name in sample.labels} for family in families}


def test_the_dashboard_asks_for_metrics_and_labels_that_a_run_writes() -> None:
    metrics = exported()
    variables = [item["query"]["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    for expression in (*EXPRESSIONS, *variables):
        names = set(re.findall(r"\begmctl_[a-z_]+(?=[{,])", expression))
        assert names <= metrics.keys() | {"egmctl_doctor"}, expression
        known = LABELS_OF_PROMETHEUS.union(*(metrics[name] for name in names))
        asked = {label for inner in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)[=!]", inner)}
        by = {label.strip() for inner in re.findall(r"by \(([^)]*)\)", expression) for label in inner.split(",")}
        assert asked | by <= known, expression
    assert len({name for text in EXPRESSIONS for name in re.findall(r"egmctl_\w+(?={)", text)}) >= 7


def test_the_dashboard_has_panels_that_do_not_overlap_and_one_source_of_data() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24, "Grafana's grid has 24 columns"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    sources = {json.dumps(item["datasource"]) for panel in DASHBOARD["panels"] for item in (panel, *panel["targets"])}
    assert len(sources) == 1


@pytest.mark.needs("promtool")
@pytest.mark.processes
def test_prometheus_parses_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": expr.replace("$instance", ".*")} for n, expr in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = ended(["promtool", "check", "rules", "--lint=none", str(tmp_path / "rules.yml")])
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize(
    ("machine", "code", "words"),
    [
        (shipped("hgx-h200x4"), 0, "EGMCTL OK - "),
        (patched(shipped("gh200"), "driver", module_version="580.1", driver_version="570.2"), 1, "EGMCTL CRITICAL - "),
    ],
    ids=["a healthy node", "a failed check"],
)
def test_the_plugin_ends_with_the_codes_of_node_problem_detector_and_its_first_line_names_the_check(
    tmp_path: Path, machine: Any, code: int, words: str
) -> None:
    """0 is OK, 1 a problem, all else unknown (node-problem-detector, pkg/custompluginmonitor/types/types.go)."""
    (rule,) = PLUGIN["rules"]
    (condition,) = PLUGIN["conditions"]
    assert rule["condition"] == condition["type"]
    path = tmp_path / "node.json"
    path.write_text(replay.machine_text(machine))
    done = run(*rule["args"], "--machine", path)
    assert (done.code, done.err) == (code, "")
    assert done.out.startswith(words)
    shown = done.out[: PLUGIN["pluginConfig"]["max_output_length"]]
    assert code == 0 or re.match(r"EGMCTL CRITICAL - PROBLEMS: [a-z.-]+: .+", shown)


def test_a_rule_of_the_plugin_takes_no_longer_than_the_plugin_may() -> None:
    seconds = [PLUGIN["pluginConfig"]["timeout"], *(rule["timeout"] for rule in PLUGIN["rules"])]
    assert len(set(seconds)) == 1
    assert PLUGIN["plugin"] == "custom"


@pytest.mark.needs("kubernetes_validate")
@pytest.mark.parametrize("kind", ["DaemonSet", "Job"])
def test_a_manifest_fits_the_schema_of_kubernetes(kind: str) -> None:
    import kubernetes_validate

    (document,) = (m for m in manifests() if m["kind"] == kind)
    kubernetes_validate.validate(document, "1.37", strict=True)
    document["spec"]["template"]["spec"]["container"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.needs("kubernetes_validate")
def test_the_pods_of_the_mpi_job_fit_the_schema_of_a_pod() -> None:
    import kubernetes_validate

    (job,) = (m for m in manifests() if m["kind"] == "MPIJob")
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rank"}, "spec": replica["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))


def test_the_command_of_the_daemon_set_writes_metrics(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    (daemons,) = (m for m in manifests() if m["kind"] == "DaemonSet")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    (line,) = re.findall(r"^\s*egmctl (.*)$", container["args"][0], re.MULTILINE)
    machine = patched(shipped("hgx-h200x4"), "gpus[*].nvml", memory_total_bytes=264 * MIB, memory_used_bytes=0)
    written = tmp_path / "egmctl.prom"
    words = [str(written) if word == "/textfile/egmctl.prom" else word for word in shlex.split(line)]
    done = egmctl(*words, env=fake_node(machine).environment())
    assert done.code in (0, 1, 3), done.err
    names = {family.name for family in text_string_to_metric_families(written.read_text())}
    assert {"egmctl_doctor_check", "egmctl_doctor_findings"} <= names
