"""The driver calls that a bench makes on the fake driver stay what they are, unless a change is meant.

After a change that is meant: ``EGMCTL_WRITE_GOLDEN=1 pytest tests/frozen``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.frozen.call_log import by_process
from tests.frozen.fold import fold
from tests.golden import compare

FOLDER = Path(__file__).parent
LATENCY = (
    "device_to_device_latency_sm",
    "host_device_latency_sm",
    "device_local_latency_cached",
    "host_numa_to_device_latency_cached",
    "device_to_device_latency_loaded_[04]",
    "*_ping_pong_latency",
    "device_local_footprint_2mib",
)
IPC = (
    "ipc_*_device_write_ce",
    "ipc_posix_fd_host_numa_read_sm",
    "ipc_posix_fd_device_ring_write_ce",
    "ipc_posix_fd_device_latency",
)


def cases(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--case", name))


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("egm", ("--suite", "egm")),
        ("host", ("--suite", "host")),
        ("p2p", ("--suite", "p2p")),
        ("latency", cases(LATENCY)),
        ("ipc", cases(IPC)),
    ],
)
def test_the_calls_of_a_family(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, family: str, options: tuple[str, ...]
) -> None:
    node = fake_node("gb200-nvl72")
    small = ("--gpus", "0-1", "--numa", "0", "--size", "1M", "--samples", "1", "--copies", "1", "-q")
    ended = egmctl("bench", *options, *small, env=node.environment(), timeout_s=280)
    assert ended.code == 0, ended.out + ended.err
    compare(fold({family: by_process(node.calls())}), FOLDER / f"calls-{family}.txt")
