"""The sources' answers are joined over bus id and UUID, nothing is lost, and each missing source has its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.driver.reading import bus_order, normal_bus_id
from egmctl.errors import ChildFailed
from egmctl.facts import gpus
from egmctl.facts.gpus import CudaFacts, NvmlFacts
from egmctl.model.gpu import Gpu, GpuCuda, GpuNvml, GpuPair, GpuProc, NvLink
from egmctl.model.host import DeviceNode, Driver, PciFunction
from egmctl.model.record import Reason, Unread

BUS_IDS = [f"0000:{bus:02x}:00.0" for bus in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)]
NOT_COLLECTED = Unread(reason=Reason.NOT_ASKED)


def joined(
    pci: list[str] | None = None,
    proc: Mapping[str, GpuProc] | None = None,
    nodes: Mapping[int, DeviceNode] | None = None,
    nvml: NvmlFacts | None = None,
    cuda: CudaFacts | None = None,
) -> tuple[Gpu, ...]:
    return gpus.join(
        pci={bus_id: PciFunction(bus_id=bus_id) for bus_id in pci or ()},
        proc=proc or {},
        nodes=nodes or {},
        nvml=nvml or NvmlFacts(absent=NOT_COLLECTED),
        cuda=cuda or CudaFacts(absent=NOT_COLLECTED),
    )


def nvml_of(bus_ids: list[str], **common: Any) -> NvmlFacts:
    return NvmlFacts(gpus={b: GpuNvml(index=i, uuid=f"GPU-{b}", minor=i, **common) for i, b in enumerate(bus_ids)})


def cuda_of(bus_ids: list[str]) -> CudaFacts:
    return CudaFacts(gpus={b: GpuCuda(ordinal=i, uuid=f"GPU-{b}") for i, b in enumerate(bus_ids)})


subsets = st.lists(st.sampled_from(BUS_IDS), unique=True)


@given(pci=subsets, proc=subsets, nvml=subsets, cuda=subsets, minors=st.sets(st.integers(0, 9)))
def test_every_gpu_that_any_source_knows_is_there_once_with_a_reason_for_each_source_that_does_not(
    pci: list[str], proc: list[str], nvml: list[str], cuda: list[str], minors: set[int]
) -> None:
    nodes = {minor: DeviceNode(path=f"/dev/nvidia{minor}", exists=True) for minor in minors}
    known_to = {"pci": pci, "proc": proc, "nvml": nvml, "cuda": cuda}

    found = joined(pci, {b: GpuProc(minor=9) for b in proc}, nodes, nvml_of(nvml), cuda_of(cuda))

    assert {gpu.bus_id for gpu in found} == set().union(*known_to.values())
    assert [gpu.index for gpu in found] == list(range(len(found)))
    for gpu in found:
        for source, bus_ids in known_to.items():
            assert (getattr(gpu, source) is not None) == (gpu.bus_id in bus_ids)
        for source in ("pci", "proc", "node", "nvml", "cuda"):
            assert (getattr(gpu, source) is None) == (source in gpu.unread)


@given(nvml=subsets, others=subsets)
def test_a_gpu_has_one_number_whoever_may_use_the_others(nvml: list[str], others: list[str]) -> None:
    found = joined(pci=others, nvml=nvml_of(sorted(nvml)))

    assert [gpu.bus_id for gpu in found] == sorted({*nvml, *others})
    assert [gpu.index for gpu in found] == list(range(len(found)))


@given(nvml=subsets.filter(lambda ids: ids != sorted(ids)), others=subsets)
def test_where_nvml_numbers_in_another_order_its_numbers_stand(nvml: list[str], others: list[str]) -> None:
    found = joined(pci=others, nvml=nvml_of(nvml))

    assert [gpu.bus_id for gpu in found] == nvml + sorted(set(others) - set(nvml))


def test_gpus_of_another_driver_come_last() -> None:
    """nvidia-smi on the host does not count what a virtual machine has."""
    pci = {bus_id: PciFunction(bus_id=bus_id, driver="nvidia") for bus_id in BUS_IDS[1:3]}
    pci[BUS_IDS[0]] = PciFunction(bus_id=BUS_IDS[0], driver="vfio-pci")
    cuda = CudaFacts(absent=NOT_COLLECTED)

    found = gpus.join(pci=pci, proc={}, nodes={}, nvml=nvml_of(BUS_IDS[1:3]), cuda=cuda)

    assert [gpu.bus_id for gpu in found] == [*BUS_IDS[1:3], BUS_IDS[0]]


def test_a_gpu_that_only_pci_knows_says_what_each_other_source_has_instead() -> None:
    found = joined(pci=BUS_IDS[:3], nvml=nvml_of(BUS_IDS[:2]), cuda=cuda_of(BUS_IDS[:1]))

    lost = found[2].unread
    assert lost["nvml"].detail == "NVML lists 2 GPUs, not this one"
    assert lost["cuda"].detail == "CUDA lists 1 GPU, not this one"
    assert {why.reason for why in lost.values()} == {Reason.NOT_PRESENT}


def test_a_gpu_that_nvml_counts_but_cannot_reach_takes_nvmls_own_words() -> None:
    gone = Unread(reason=Reason.FAILED, detail="GPU 1: nvmlDeviceGetHandleByIndex: 15 (GPU is lost)")
    nvml = NvmlFacts(gpus={BUS_IDS[0]: GpuNvml(index=0), BUS_IDS[2]: GpuNvml(index=2)}, lost=(gone,))

    found = joined(pci=BUS_IDS[:3], nvml=nvml)

    assert [(gpu.bus_id, gpu.index) for gpu in found] == [(BUS_IDS[0], 0), (BUS_IDS[1], 1), (BUS_IDS[2], 2)]
    assert found[1].unread["nvml"] == gone


def test_a_bus_id_that_cuda_cuts_short_is_found_again_by_the_uuid() -> None:
    whole, cut = "10000:01:00.0", "0000:01:00.0"
    nvml = NvmlFacts(gpus={whole: GpuNvml(index=0, uuid="GPU-a"), BUS_IDS[0]: GpuNvml(index=1, uuid="GPU-b")})
    cuda = CudaFacts(
        gpus={cut: GpuCuda(ordinal=0, uuid="GPU-a"), BUS_IDS[0]: GpuCuda(ordinal=1, uuid="GPU-b")},
        pairs=(GpuPair(source=cut, target=BUS_IDS[0], can_access_peer=True),),
    )

    found = joined(nvml=nvml, cuda=cuda)
    pairs = gpus.join_pairs(found, nvml, cuda)

    assert [(gpu.bus_id, gpu.cuda and gpu.cuda.ordinal) for gpu in found] == [(whole, 0), (BUS_IDS[0], 1)]
    assert [pair.can_access_peer for pair in pairs if pair.source == whole] == [True]


def test_the_node_is_found_by_the_minor_of_proc_or_else_of_nvml() -> None:
    nodes = {minor: DeviceNode(path=f"/dev/nvidia{minor}", exists=True) for minor in (0, 4)}

    by_proc, by_nvml, missing = joined(
        nodes=nodes,
        proc={BUS_IDS[0]: GpuProc(minor=4), BUS_IDS[2]: GpuProc(minor=7)},
        nvml=NvmlFacts(gpus={BUS_IDS[0]: GpuNvml(index=0, minor=0), BUS_IDS[1]: GpuNvml(index=1, minor=0)}),
    )

    assert by_proc.node == nodes[4]
    assert by_nvml.node == nodes[0]
    assert missing.unread["node"].detail == "/dev/nvidia7: not there"


# --- pairs -----------------------------------------------------------------------------------------------------------


def links(*remotes: str | None, kind: str = "gpu", down: int = 0) -> tuple[NvLink, ...]:
    """Links to the bus ids given (``None``: the driver hides it), and some that are down."""
    hidden = {"remote_bus_id": Unread(reason=Reason.NOT_SUPPORTED, detail="masked")}
    active = [
        NvLink(link=i, active=True, remote_type=kind, remote_bus_id=b, unread={} if b else hidden)
        for i, b in enumerate(remotes)
    ]
    return (*active, *(NvLink(link=len(active) + i, active=False, remote_type=kind) for i in range(down)))


def pair_of(first: tuple[NvLink, ...] | None, second: tuple[NvLink, ...] | None) -> GpuPair:
    no_links = {"nvlinks": Unread(reason=Reason.NOT_SUPPORTED, detail="field 91: 3 (Not Supported)")}
    nvml = NvmlFacts(
        gpus={
            b: GpuNvml(index=i, nvlinks=found, unread={} if found is not None else no_links)
            for i, (b, found) in enumerate(zip(BUS_IDS, (first, second), strict=False))
        }
    )
    return gpus.join_pairs(joined(nvml=nvml), nvml, CudaFacts(absent=NOT_COLLECTED))[0]


FIRST, SECOND, THIRD = BUS_IDS[:3]


@pytest.mark.parametrize(
    ("first", "second", "count", "through"),
    [
        pytest.param(
            links(SECOND, SECOND, THIRD), links(FIRST, FIRST, THIRD), 2, "direct", id="direct links, one by one"
        ),
        pytest.param(
            links(*[None] * 18, kind="switch"),
            links(*[None] * 17, kind="switch", down=1),
            17,
            "switch",
            id="links to a switch, as many as both sides have up",
        ),
        pytest.param((), links(BUS_IDS[5], down=3), 0, None, id="no links, which needs no reason"),
    ],
)
def test_the_nvlinks_that_join_a_pair_are_counted(
    first: tuple[NvLink, ...], second: tuple[NvLink, ...], count: int, through: str | None
) -> None:
    pair = pair_of(first, second)

    assert (pair.nvlink_count, pair.nvlink_through) == (count, through)
    assert not {"nvlink_count", "nvlink_through"} & set(pair.unread)


@pytest.mark.parametrize(
    ("first", "second", "detail"),
    [
        pytest.param(links(None, None), links(None, None), "masked", id="far ends that are hidden"),
        pytest.param(links(SECOND), None, "field 91: 3 (Not Supported)", id="links that could not be read"),
    ],
)
def test_nvlinks_that_cannot_be_counted_are_no_number_but_a_reason(
    first: tuple[NvLink, ...], second: tuple[NvLink, ...] | None, detail: str
) -> None:
    pair = pair_of(first, second)

    assert pair.nvlink_count is None
    assert pair.unread["nvlink_count"] == Unread(reason=Reason.NOT_SUPPORTED, detail=detail)


@given(nvml=subsets, cuda=subsets, pci=subsets)
def test_each_ordered_pair_of_gpus_that_a_library_knows_is_there_once_and_complete(
    nvml: list[str], cuda: list[str], pci: list[str]
) -> None:
    def both(bus_ids: list[str], **values: Any) -> tuple[GpuPair, ...]:
        return tuple(GpuPair(source=a, target=b, **values) for a in bus_ids for b in bus_ids if a != b)

    nvml_facts = NvmlFacts(
        gpus={b: GpuNvml(index=i, nvlinks=()) for i, b in enumerate(nvml)},
        pairs=both(nvml, common_ancestor="node", p2p_status={"read": "OK"}),
    )
    cuda_facts = CudaFacts(
        gpus={b: GpuCuda(ordinal=i) for i, b in enumerate(cuda)},
        pairs=both(cuda, can_access_peer=True, cuda_attributes={"PERFORMANCE_RANK": 0}),
    )
    found = joined(pci=pci, nvml=nvml_facts, cuda=cuda_facts)

    pairs = gpus.join_pairs(found, nvml_facts, cuda_facts)

    usable = [gpu.bus_id for gpu in found if gpu.bus_id in {*nvml, *cuda}]
    assert [(pair.source, pair.target) for pair in pairs] == [(a, b) for a in usable for b in usable if a != b]
    for pair in pairs:
        in_nvml, in_cuda = {pair.source, pair.target} <= set(nvml), {pair.source, pair.target} <= set(cuda)
        assert (pair.common_ancestor is not None, bool(pair.p2p_status)) == (in_nvml, in_nvml)
        assert ("common_ancestor" in pair.unread, "p2p_status" in pair.unread) == (not in_nvml, not in_nvml)
        assert (pair.can_access_peer is not None, bool(pair.cuda_attributes)) == (in_cuda, in_cuda)
        assert ("can_access_peer" in pair.unread, "cuda_attributes" in pair.unread) == (not in_cuda, not in_cuda)


# --- what the children end with --------------------------------------------------------------------------------------


def raised(kind: str, **details: Any) -> ChildFailed:
    return ChildFailed("secret", how="raised", kind=kind, details=details)


@pytest.mark.parametrize(
    ("error", "reason", "detail"),
    [
        (
            ChildFailed("", how="timed-out", last_call="nvmlDeviceGetName"),
            "timed-out",
            "the child that reads NVML timed out in nvmlDeviceGetName",
        ),
        (ChildFailed("", how="crashed"), "crashed", "the child that reads NVML crashed"),
        (raised("ValueError"), "failed", "the child that reads NVML raised ValueError"),
        (raised("DriverTooOld", call="cuInit", number=None, name="no"), "driver-too-old", "cuInit: no"),
        (raised("DriverLibraryMissing", call="cuInit", name="none"), "missing-library", "cuInit: none"),
    ],
)
def test_a_child_that_failed_is_a_source_that_is_absent_and_says_why(
    error: ChildFailed, reason: str, detail: str
) -> None:
    facts = gpus.library_facts(NvmlFacts, error)

    assert facts.absent == Unread(reason=Reason(reason), detail=detail)
    missing = {"driver_version", "nvml_version", "nvlink_bandwidth_mode", "nvml_error"}
    missing |= {"confidential_compute", "confidential_ready"}
    assert gpus.with_nvml(Driver(), facts).unread == dict.fromkeys(missing, facts.absent)


def test_a_child_that_answers_nonsense_is_a_source_that_is_absent() -> None:
    facts = gpus.library_facts(CudaFacts, {"gpus": {BUS_IDS[0]: {"ordinal": "zero"}}})

    assert facts.absent is not None
    assert "ordinal: expected a whole number" in facts.absent.detail


def test_the_drivers_versions_and_errors_come_with_their_reasons() -> None:
    missing = Unread(reason=Reason.MISSING_LIBRARY, detail="cuDriverGetVersion: libcuda.so.1 cannot be loaded")
    stated: dict[str, Any] = {
        "driver_version": "580.159.04",
        "nvml_version": "13.580.159.04",
        "confidential_compute": "off",
        "confidential_ready": True,
        "nvlink_bandwidth_mode": "full",
    }
    driver = gpus.with_cuda(gpus.with_nvml(Driver(), NvmlFacts(**stated)), CudaFacts(absent=missing))
    of_cuda = ("cuda_driver_version", "cuda_error", "libcuda_version", "libcuda_compat")
    assert driver == Driver(**stated, unread=dict.fromkeys(of_cuda, missing))


# --- identities ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_a_bus_id_has_one_spelling_whoever_wrote_it(domain: int, bus: int, device: int, function: int) -> None:
    sysfs = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"

    assert normal_bus_id(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == sysfs
    assert normal_bus_id(sysfs) == sysfs
    assert bus_order(sysfs) == (domain, bus, device, function)


@pytest.mark.parametrize("text", ["", "0000:1b:00", "0000:1b:00.8", "x:1b:00.0", "0000:1b:00.0; rm"])
def test_what_is_no_bus_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a PCI bus id"):
        normal_bus_id(text)
