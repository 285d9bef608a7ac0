"""Who works which GPU, and what ends a run of several before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.plan.placement import NvlinkDomain, RankInfo, agree, assign, rank_info, ranks_of, whole
from egmctl.errors import NothingToDo, UsageError
from egmctl.facts.replay import load

DOMAIN = NvlinkDomain(cluster="3ac9e5a1-0b64-4f57-8e5c-5a1de7ac1b9d", clique=7)


def at(host: str, *gpus: str, domain: NvlinkDomain = DOMAIN, driver: str = "580.95.05") -> RankInfo:
    return RankInfo(host=host, tool="0.1.0", driver=driver, gpus=gpus, domains=dict.fromkeys(gpus, domain))


@pytest.mark.parametrize(
    ("infos", "gpus"),
    [
        (
            [at("a", "1b", "2c"), at("b", "1b", "2c"), at("a", "1b", "2c"), at("b", "1b", "2c")],
            ("1b", "1b", "2c", "2c"),
        ),
        # As of Slurm's --gpu-bind: the first one may use any.
        ([at("a", "1b", "2c", "3d"), at("a", "2c"), at("a", "1b")], ("3d", "2c", "1b")),
    ],
    ids=["all GPUs of the node in turn", "what a launcher has bound"],
)
def test_ranks_take_what_they_may_use(infos: list[RankInfo], gpus: tuple[str, ...]) -> None:
    assert assign(infos) == gpus


@pytest.mark.parametrize(
    ("infos", "error", "words"),
    [
        ([at("a", "1b"), at("a", "1b")], UsageError, "a has 2 ranks and 1 usable GPU"),
        ([at("a", "1b"), at("b")], NothingToDo, "b has no GPU to measure: no GPU was found"),
        (
            [at("a", "1b"), replace(at("b"), waivers=("CUDA_VISIBLE_DEVICES hides GPU0",))],
            NothingToDo,
            "b has no GPU to measure: CUDA_VISIBLE_DEVICES hides GPU0",
        ),
    ],
)
def test_a_node_with_too_few_gpus_is_named(infos: list[RankInfo], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        assign(infos)


def test_nodes_that_are_alike_agree_and_cliques_matter_between_nodes_only() -> None:
    agree([at("a", "1b"), at("b", "1b")], ("1b", "1b"))
    agree([at("a", "1b", domain=NvlinkDomain(reason="no domain")), at("a", "2c")], ("1b", "2c"))


NO_FABRIC = NvlinkDomain(reason="the fabric's state is not-supported")


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        (
            [at("a", "1b"), at("b", "1b", driver="590.10")],
            r"the driver's version differs between nodes: 580.95.05 on a; 590.10 on b",
        ),
        (
            [at("a", "1b"), replace(at("b", "1b"), tool="0.2.0")],
            r"the version of egmctl differs .*0.1.0 on a; 0.2.0 on b",
        ),
        (
            [at("a", "1b"), at("b", "1b", domain=NvlinkDomain(cluster="x", clique=8))],
            r"the NVLink domain differs .*clique 7 on a; cluster x, clique 8 on b",
        ),
        ([at(host, "1b", domain=NO_FABRIC) for host in "ab"], r"do not go from node to node here .*not-supported"),
    ],
    ids=["driver", "tool", "domain", "no domain"],
)
def test_what_differs_is_told_by_node(infos: list[RankInfo], words: str) -> None:
    with pytest.raises(NothingToDo, match=words):
        agree(infos, ("1b", "1b"))


def test_what_a_rank_reports_is_what_a_machine_lets_a_rank_use() -> None:
    machine = load("gb200-nvl72")
    hidden = replace(machine.process, environment={"CUDA_VISIBLE_DEVICES": "1,3"}) if machine.process else None
    found = rank_info(replace(machine, process=hidden), "a", "0.1.0", (machine.gpus or ())[1:])
    assert found.gpus == ("0009:01:00.0", "0019:01:00.0")
    assert found.waivers == ("CUDA_VISIBLE_DEVICES hides GPU2",)
    assert set((found.domains or {}).values()) == {
        NvlinkDomain(cluster="00000000-0000-0000-0000-000000000072", clique=1)
    }


def test_a_node_is_put_together_of_what_each_rank_sees_of_its_own_gpu() -> None:
    machine = load("gb200-tray")
    gpus = machine.gpus or ()
    # Under a device cgroup each rank sees one GPU, and NVML counts from 0.
    seen = replace(machine, gpus=(gpus[2],))
    found = whole(seen, [replace(gpus[0], index=0), replace(gpus[3], index=0)])
    assert [(gpu.index, gpu.bus_id) for gpu in found.gpus or ()] == [
        (place, gpus[number].bus_id) for place, number in enumerate((0, 2, 3))
    ]


def test_ranks_are_named_by_their_node_where_there_are_several() -> None:
    machine = load("gb200-tray")
    first, second = (gpu.bus_id for gpu in (machine.gpus or ())[:2])
    one_node = [at("a", first, second)] * 2
    assert [rank.label for rank in ranks_of(one_node, (first, second), {"a": machine})] == ["GPU0", "GPU1"]
    two = [at("a", first), at("b", first)]
    ranks = ranks_of(two, (first, first), {"a": machine, "b": machine})
    assert [(rank.label, rank.host, rank.numa_node) for rank in ranks] == [
        ("node1:GPU0", "a", 0),
        ("node2:GPU0", "b", 0),
    ]
