"""NVLinks and the pairs that they join."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.facts.cuda import P2P_ATTRIBUTES
from egmctl.model.gpu import GpuPair, NvLink
from egmctl.model.record import Reason, Unread
from machine_models.stating import NOT_STATED, NVLINK_4, NVLINK_5, NVLINK_MB_S, NVLINKS, among, stated

COUNTERS = {
    NVLINK_4: {"counters": Unread(reason=Reason.NOT_SUPPORTED, detail="counters of NVLink 5 and newer")},
    NVLINK_5: dict.fromkeys(
        ("crc_errors", "replay_errors", "recovery_errors"),
        Unread(reason=Reason.NOT_SUPPORTED, detail="counters of NVLink 4 and older"),
    ),
}
"""The counters that a link lacks (nvml.h: fields 161 to 163 up to Hopper, 206 to 222 from Blackwell on)."""

NOT_OVER_PCIE = Unread(reason=Reason.NOT_STATED, detail="no public nvidia-smi topo -p2p p of this machine")


def links_to_switches(version: int) -> tuple[NvLink, ...]:
    """Return a GPU's links, all up, each to a switch whose bus id no source states."""
    return tuple(
        stated(
            NvLink,
            link=link,
            active=True,
            version=version,
            remote_type="switch",
            speed_mb_s=NVLINK_MB_S[version],
            **COUNTERS[version],
        )
        for link in range(NVLINKS)
    )


def links_to_peers(version: int, peers: Sequence[str]) -> tuple[NvLink, ...]:
    """Return a GPU's links, all up, distributed evenly over its peers.

    The number of links to each peer is published, but not their indices. Here they are numbered by peer.
    """
    each = NVLINKS // len(peers)
    return tuple(
        stated(
            NvLink,
            link=link,
            active=True,
            version=version,
            remote_type="gpu",
            remote_bus_id=peers[link // each],
            speed_mb_s=NVLINK_MB_S[version],
            **COUNTERS[version],
        )
        for link in range(NVLINKS)
    )


def pairs(bus_ids: Sequence[str], nvlinks: int, through: str) -> tuple[GpuPair, ...]:
    """Return every ordered pair of GPUs that NVLinks join: peers for loads, stores and atomics.

    Parameters
    ----------
    nvlinks
        The number of links between two GPUs.
    through
        The kind of connection: ``direct`` or ``switch``.
    """
    return tuple(
        stated(
            GpuPair,
            source=source,
            target=target,
            p2p_status={"read": "OK", "write": "OK", "nvlink": "OK", "atomics": "OK", "pci": NOT_OVER_PCIE},
            nvlink_count=nvlinks,
            nvlink_through=through,
            can_access_peer=True,
            cuda_attributes=among(P2P_ATTRIBUTES, {"ACCESS_SUPPORTED": 1, "NATIVE_ATOMIC_SUPPORTED": 1}),
            common_ancestor=NOT_STATED,
        )
        for source in bus_ids
        for target in bus_ids
        if source != target
    )
