"""Join the diagnosis of a node with the run of its bench, and answer whether it can be handed over. Pure."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.bringup import Board, Bringup, Identity
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.gpu import Gpu, GpuNvml, Platform
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.verdict.answers import answered, with_clauses
from egmctl.verdict.answers.bringup import of_bringup


def bringup_answer(
    diagnosis: Diagnosis,
    run: RunReport | None,
    *,
    before: Diagnosis | None = None,
    not_measured: str = "",
    no_fabric: str = "",
    identity: Identity | None = None,
) -> Bringup:
    """Return the bring-up of a node with its answer.

    Parameters
    ----------
    diagnosis
        The diagnosis after the bench, if there was one.
    run
        The bench on the same node, judged and explained; ``None`` if there was none.
    before
        The diagnosis before the bench. A finding that is not in it appeared under load, and a warning then fails.
    not_measured
        The reason why there was no bench.
    no_fabric
        The reason why the fabric to other nodes was not measured; empty if only this node is asked about.
    identity
        Whose the results are (:func:`identity_of`); ``None``: it keeps its pseudonyms.
    """
    whole = answered(
        Bringup(diagnosis=diagnosis, run=run, not_measured=not_measured, no_fabric=no_fabric, identity=identity)
    )
    return whole if before is None else replace(whole, answer=with_clauses(of_bringup(whole, before=before)))


def identity_of(machine: Machine) -> Identity:
    """Return the names of a node and of the boards of its GPUs."""
    return Identity(
        hostname=(machine.host and machine.host.hostname) or "",
        boards=tuple(map(_board, machine.gpus or ())),
    )


def _board(gpu: Gpu) -> Board:
    nvml = gpu.nvml or GpuNvml(index=gpu.index)
    place = nvml.platform or Platform()
    return Board(
        gpu=f"GPU{gpu.index}",
        bus_id=gpu.bus_id,
        serial=nvml.serial,
        part_number=nvml.board_part_number,
        chassis_serial=place.chassis_serial,
        slot=place.slot,
        tray=place.tray,
    )
