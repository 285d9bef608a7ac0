"""Cases ``egm_shared_*``: who exports the memory that all GPUs share, who imports it, and that no byte is another's."""

from __future__ import annotations

import pytest

from egmctl.model.route import HOST_MEMORY
from egmctl.model.task import Endpoint, Task
from tests.bench.ipc import RunIpc
from tests.bench.plans import plan_of


def shared(task: Task) -> list[Endpoint]:
    """Return the shared end of each flow."""
    return [end for flow in task.flows for end in (flow.source, flow.destination) if end.memory in HOST_MEMORY]


@pytest.mark.parametrize(
    ("gpus", "nodes", "exporters"),
    [
        ([0], (0,), {0: (1, "GPU0")}),
        ([0, 1, 2, 3], (0, 1), {0: (4, "GPU0"), 1: (5, "GPU2")}),
        ([3], (0,), {0: (1, "GPU3")}),
    ],
)
def test_a_process_of_each_numa_node_exports_and_that_of_each_gpu_imports(
    gpus: list[int], nodes: tuple[int, ...], exporters: dict[int, tuple[int, str]]
) -> None:
    names = ("egm_shared_read_ce", "egm_shared_all_write_sm", "egm_shared_life_cycle")
    plan = plan_of(*names, machine="gb200-nvl72", gpus=gpus, nodes=nodes)
    labels = [f"GPU{gpu}" for gpu in gpus] + [label for _, label in exporters.values()]
    assert [rank.label for rank in plan.ranks] == labels
    for task in (task for task in plan.tasks if task.case.startswith("egm_shared")):
        assert len(set(shared(task))) == 1, "one allocation"
        end = shared(task)[0]
        assert (end.rank, end.allocated_by_label) == exporters[end.numa_node or 0]
        assert end.parts == len(task.flows) == (len(gpus) if "all" in task.case else 1)
        assert end.rank not in [flow.initiator_rank for flow in task.flows]
    at_once = [task.path for task in plan.tasks if task.case == "egm_shared_all_write_sm"]
    everyone = ",".join(f"GPU{gpu}" for gpu in gpus)
    assert at_once == [f"{everyone} -> NUMA{node}" for node in nodes if len(gpus) > 1]


def test_the_exporter_gives_the_cpus_and_both_gpus_access_and_each_importer_both_gpus(run_ipc: RunIpc) -> None:
    ended = run_ipc("egm_shared_life_cycle")
    node = ended.node
    exporting = {call.pid for call in node.calls("cuMemExportToShareableHandle")}
    assert len(exporting) == 1
    importing = {call.pid for call in node.calls("cuMemImportFromShareableHandle")}

    def given(pids: set[int]) -> set[int]:
        return {call.arguments["access"].count("RW") for call in node.calls("cuMemSetAccess") if call.pid in pids}

    assert given(exporting) == {3}
    assert given(importing) == {2}
    assert not exporting & {call.pid for call in node.calls("cuMemImportFromShareableHandle")}
    for life in ended.of("egm_shared_life_cycle"):
        assert [stage.name for stage in life.stages][:3] == ["allocate", "set-access", "export"]
