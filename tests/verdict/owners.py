"""Runs in which counters show over which links host memory was read: whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from egmctl.bench.evidence import gpu_labels, link_evidence
from egmctl.gpu.telemetry import Traffic
from egmctl.model.measurement import GpuEvidence, Measurement, TaskEvidence
from tests.doctor.machines import shipped

CASE = "host_numa_by_owner_to_device_memcpy_ce"
GB200 = "gb200-tray"
Owner = Mapping[str, str | None]
"""Of memory allocated under a GPU, the GPU that it belongs to; ``None``: each GPU reaches it over its own C2C."""
EACH_ITSELF: Owner = {f"GPU{n}": f"GPU{n}" for n in range(4)}
FIRST_OF_CPU: Owner = {"GPU0": "GPU0", "GPU1": "GPU0", "GPU2": "GPU2", "GPU3": "GPU2"}


def bus_id(label: str) -> str:
    return (shipped(GB200).gpus or ())[int(label[3:])].bus_id


def counted(measurement: Measurement, owner: Owner, at: tuple[str, ...]) -> Measurement:
    """Return a read with the counters of the GPUs ``at``, as they stand if memory belongs to whom ``owner`` says."""
    flow = measurement.flows[0]
    moved = len(measurement.samples) * measurement.copies * measurement.size_bytes
    rises = {bus_id(label): Traffic({"nvlink": 0, "pcie": 0}, {"nvlink": 0, "pcie": 0}) for label in at}
    whose, reader = owner[flow.source.allocated_by_label or ""], flow.initiator_label
    if whose not in (None, reader):
        for label, sent, received in ((reader, 0, moved), (str(whose), moved, 0)):
            if label in at:
                rises[bus_id(label)] = Traffic({"nvlink": sent, "pcie": 0}, {"nvlink": received, "pcie": 0})
    gpus = tuple(
        GpuEvidence(bus_id=one, label=label, sent_bytes=rises[one].sent_bytes, received_bytes=rises[one].received_bytes)
        for one, label in gpu_labels([measurement]).items()
        if one in rises
    )
    found = TaskEvidence(gpus=gpus, route=link_evidence(measurement, len(measurement.samples), rises))
    return replace(measurement, evidence=found)
