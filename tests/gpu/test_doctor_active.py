"""``doctor --active`` on real GPUs: all paths carry data, and what the EGM guide warns of can be shown.

The table that was measured by hand (docs/hardware-notes.md): memory of one GPU, opened by a process on another one,
which has the owner hidden by CUDA_VISIBLE_DEVICES, or denied by a device cgroup.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.checks.active import CHECKS
from egmctl.doctor.prober import Prober, attempt_probe
from egmctl.model.finding import Status
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine, Origin, OriginKind
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome
from tests.answers import diagnose
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.cgroups import denying_v2

pytestmark = pytest.mark.gpu

LEGACY, POSIX_FD, POOL, FABRIC = ProbeKind.LEGACY_IPC, ProbeKind.POSIX_FD, ProbeKind.POOL, ProbeKind.FABRIC
EVENT = ProbeKind.IPC_EVENT
COLUMNS = (
    (LEGACY, None),
    (EVENT, None),
    (POSIX_FD, None),
    (POSIX_FD, 0),
    (FABRIC, None),
    (FABRIC, 0),
    (POOL, None),
    (POOL, 0),
)
"""What is shared: the kind of handle, and the NUMA node of host memory. Pools are last: an import of one that fails may
leave a process that is of no more use."""

UNDER_A_CGROUP = {
    (LEGACY, None): ("cuIpcOpenMemHandle", 1),
    (POSIX_FD, None): ("cuMemImportFromShareableHandle", 101),
    (POSIX_FD, 0): ("cuMemImportFromShareableHandle", 101),
    (FABRIC, None): ("cuMemImportFromShareableHandle", 801),
    (FABRIC, 0): ("cuMemImportFromShareableHandle", 801),
}
"""Measured on H200, driver 580. What pools answer is shown and not asserted."""

Table = dict[tuple[ProbeKind, int | None], Probe]


def table(gpus: tuple[str, str], owner: Prober, start_importer: Callable[[], Prober]) -> Table:
    """Share everything once, with another importer where one has come to its end."""
    probes = {}
    importer = start_importer()
    for kind, node in COLUMNS:
        blank = Probe(kind=kind, gpus=gpus, numa_node=node, outcome=ProbeOutcome.NOT_RUN)
        probes[kind, node] = attempt_probe(blank, (owner, importer))
        assert not owner.is_lost, shown(probes)
        if importer.is_lost:
            importer = start_importer()
    return probes


def shown(found: Table) -> str:
    """Return a table to read in a failure."""
    return "\n".join(
        f"{kind} {'DEVICE' if node is None else 'HOST_NUMA'}: {probe.outcome} {probe.detail}"
        for (kind, node), probe in found.items()
    )


@pytest.mark.needs_root
@pytest.mark.usefixtures("imex_channel")
def test_the_same_import_works_with_cuda_visible_devices_and_fails_under_a_device_cgroup(gpus: tuple[Gpu, ...]) -> None:
    first, second = gpus[:2]
    assert first.proc is not None
    assert first.proc.minor is not None
    with denying_v2(first.proc.minor) as cgroup, contextlib.ExitStack() as ended:

        def prober(visible: str | None = None, cgroup: Path | None = None) -> Prober:
            made = Prober(
                environment={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": visible},
                before="tests.doctor.hooks:join_cgroup" if cgroup else None,
                before_arguments={"directory": str(cgroup)},
            )
            return ended.enter_context(contextlib.closing(made))

        ends, owner = (first.bus_id, second.bus_id), prober()
        tables = [
            table(ends, owner, prober),
            table(ends, owner, lambda: prober(visible=second.uuid)),
            table(ends, owner, lambda: prober(cgroup=cgroup.directory)),
        ]
    for found in tables:
        print(shown(found))  # noqa: T201 - with -s: the measured table
    for found in tables[:2]:
        assert {found[column].outcome for column in (*UNDER_A_CGROUP, (EVENT, None))} == {ProbeOutcome.OK}, shown(found)
    denied = tables[2]
    assert denied[EVENT, None].outcome is ProbeOutcome.OK, shown(denied)
    answers = {column: (denied[column].call, denied[column].error_number) for column in UNDER_A_CGROUP}
    assert answers == UNDER_A_CGROUP, shown(denied)
    probes = tuple(denied[column] for column in UNDER_A_CGROUP)
    machine = Machine(origin=Origin(kind=OriginKind.LIVE), gpus=gpus, probes=probes)
    findings = diagnose(machine, EVERYTHING, CHECKS).findings
    failures = [finding for finding in findings if finding.status is Status.FAIL]
    assert {finding.check for finding in failures} >= {"ipc.legacy-active", "ipc.vmm-active", "fabric.alloc-active"}
    for finding in failures:
        assert "device cgroup" in finding.cause
        assert finding.remedy is not None
        assert "CUDA_VISIBLE_DEVICES" in finding.remedy.text


def test_a_healthy_node_passes_in_time_and_nothing_is_left(egmctl: RunEgmctl, gpus: tuple[Gpu, ...]) -> None:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    before = subprocess.check_output(query, text=True)
    started = time.monotonic()
    done = egmctl("doctor", "--active", "--check", "*active", "--check", "p2p.verify", "--json")
    elapsed_s = time.monotonic() - started
    findings = json.loads(done.out)["result"]["findings"]
    assert done.code == 0, done.out
    passed = {finding["check"] for finding in findings if finding["status"] == "pass"}
    assert passed >= {"egm.alloc-active", "p2p.verify", "ipc.legacy-active", "ipc.vmm-active", "ipc.pool-active"}
    (managed,) = [finding for finding in findings if finding["check"] == "ipc.managed-active"]
    assert managed["status"] == "pass"
    assert "cuIpcGetMemHandle failed: CUDA_ERROR_INVALID_VALUE" in managed["evidence"][0]["value"]
    assert subprocess.check_output(query, text=True) == before
    assert elapsed_s < 15 * max(1, len(gpus) / 4)
