"""Fake nodes on which NVML fails: what egmctl reads there, and what doctor says of it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from itertools import islice

import pytest

from egmctl import launch
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.errors import ChildFailed
from egmctl.facts import gpus
from egmctl.model.codec import JsonValue
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests import forked
from tests.answers import diagnose
from tests.fake.node import FakeNode

SECTIONS = ("host", "gpus", "driver", "process", "confinement")


@contextlib.contextmanager
def here(node: FakeNode, faults: str = "") -> Iterator[pytest.MonkeyPatch]:
    """Be on the node with this process, and not a moment longer: its libraries are found by all that is started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in node.environment(faults).items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        yield patch


def calls(node: FakeNode) -> list[str]:
    """Return every NVML function that is called, in the order of the first calls."""
    return list(dict.fromkeys(call.name for call in node.calls() if call.name.startswith("nvml")))


def outcomes(
    node: FakeNode, plans: list[str], target: str = "egmctl.facts.nvml:read"
) -> Iterator[tuple[str, JsonValue | ChildFailed]]:
    """Ask NVML, or CUDA, once under each fault plan, several at a time; one that hangs is given up where it does."""
    waiting = iter(plans)
    with forked.children():
        while batch := list(islice(waiting, 6)):
            children = [
                launch.Child(target, {"pairs": True}, environment=node.environment(plan), grace_s=0) for plan in batch
            ]
            for plan, child in zip(batch, children, strict=True):
                call, _, action = plan.partition("=")
                with child:
                    until = time.monotonic() + 30
                    while action == "hang" and not (child.last_call() or "").startswith(call):
                        assert time.monotonic() < until, f"{call} was not reached"
                        time.sleep(0.005)
                    try:
                        yield plan, child.result(0.05 if action == "hang" else 30)
                    except ChildFailed as error:
                        yield plan, error


def joined(machine: Machine, nvml: JsonValue | ChildFailed, cuda: JsonValue | ChildFailed | None = None) -> Machine:
    """Return the machine where the libraries have answered so; CUDA is not asked where there is no answer of it."""
    nvml_facts = gpus.library_facts(gpus.NvmlFacts, nvml)
    unasked = gpus.CudaFacts(absent=Unread(reason=Reason.NOT_ASKED))
    cuda_facts = unasked if cuda is None else gpus.library_facts(gpus.CudaFacts, cuda)
    known = machine.gpus or ()
    found = gpus.join(
        pci={gpu.bus_id: gpu.pci for gpu in known if gpu.pci},
        proc={gpu.bus_id: gpu.proc for gpu in known if gpu.proc},
        nodes={gpu.proc.minor: gpu.node for gpu in known if gpu.node and gpu.proc and gpu.proc.minor is not None},
        nvml=nvml_facts,
        cuda=cuda_facts,
    )
    assert machine.driver is not None
    driver = gpus.with_cuda(gpus.with_nvml(machine.driver, nvml_facts), cuda_facts)
    pairs = gpus.join_pairs(found, nvml_facts, cuda_facts)
    return dataclasses.replace(machine, gpus=found, driver=driver, pairs=pairs)


def diagnosed(machine: Machine, outcome: JsonValue | ChildFailed) -> Diagnosis:
    """What the checks say of the machine where NVML has answered so."""
    return diagnose(joined(machine, outcome), EVERYTHING, CHECKS)
