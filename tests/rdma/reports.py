"""Reports that UCX 1.22 and 1.21 printed (with shorter times of the latter), and one as it would be with a NIC."""

from __future__ import annotations

HOST_SENDER = """\
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
[1795212397.588926] [vm:6378 :0]   | ucp_context_0 intra-node cfg#0                                             |
[1795212397.588926] [vm:6378 :0]   | tagged message by ucp_tag_send* from host memory                           |
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
[1795212397.588926] [vm:6378 :0]   | Count |  Range   |                Description                |   Config    |
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
[1795212397.588926] [vm:6378 :0]   |     0 |    0..92 | eager short                               | sysv/memory |
[1795212397.588926] [vm:6378 :0]   |     3 | 93..8191 | eager copy-in copy-out                    | sysv/memory |
[1795212397.588926] [vm:6378 :0]   |     9 |  8K..inf | (?) rendezvous zero-copy read from remote | cma/memory  |
[1795212397.588926] [vm:6378 :0]   +-------+----------+-------------------------------------------+-------------+
"""
HOST_RECEIVER = """\
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
[1795212397.588120] [vm:6379 :0]   | ucp_context_0 intra-node cfg#0                                    |
[1795212397.588120] [vm:6379 :0]   | rendezvous data fetch into host memory from host                  |
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
[1795212397.588120] [vm:6379 :0]   | Count |   Range   |           Description           |   Config    |
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
[1795212397.588120] [vm:6379 :0]   |     0 |         0 | no data fetch                   |             |
[1795212397.588120] [vm:6379 :0]   |     0 |   1..1727 | (?) fragmented copy-in copy-out | sysv/memory |
[1795212397.588120] [vm:6379 :0]   |     9 | 1728..inf | zero-copy read from remote      | cma/memory  |
[1795212397.588120] [vm:6379 :0]   +-------+-----------+---------------------------------+-------------+
"""
"""Two processes of one node, numpy memory."""


def table(operation: str, *rows: tuple[int | str, str, str, str]) -> str:
    """Return a table as UCX prints it, without the times: ``count``, ``sizes``, ``description``, ``transports``."""
    lines = ["ucp_context_0 cfg#0", operation, "Count | Range | Description | Config"]
    lines += [f"{count} | {sizes} | {what} | {how}" for count, sizes, what, how in rows]
    return "".join(f"| {line} |\n" for line in lines)


_TO_GPU1 = "rendezvous data fetch into cuda/GPU1 from cuda"
_FROM_GPU0 = "tagged message by ucp_tag_send* from cuda/GPU0"
_FROM_HOST = "tagged message by ucp_tag_send* from host memory"

IPC_SENDER = table(_FROM_GPU0, (314, "8K..inf", "(?) rendezvous zero-copy read from remote", "cuda_ipc/cuda"))
IPC_RECEIVER = table(_TO_GPU1, (314, "1..inf", "zero-copy read from remote", "cuda_ipc/cuda")) + table(
    _FROM_HOST, (0, "8K..inf", "(?) rendezvous zero-copy read from remote", "cma/memory")
)
"""GPU to GPU on one H200 node; the receiver's short answers come from host memory."""

TCP_SENDER = table(_FROM_GPU0, (11, "8K..inf", "(?) rendezvous fragmented copy-in copy-out", "tcp/lo")) + table(
    "rendezvous data send from cuda/GPU0 to cuda", (22583, "0..inf", "fragmented copy-in copy-out", "tcp/lo")
)
TCP_RECEIVER = table(_TO_GPU1, (11, "1..inf", "(?) fragmented copy-in copy-out", "tcp/lo"))
"""The same with UCX_TLS=tcp,cuda_copy."""

GPUDIRECT_SENDER = table(
    _FROM_GPU0,
    (9, "8K..inf", "(?) rendezvous zero-copy read from remote", "50% on rc_mlx5/mlx5_0:1/path0"),
    ("", "", "", "50% on rc_mlx5/mlx5_1:1/path0"),
)
STAGED_SENDER = table(
    _FROM_GPU0, (9, "8K..inf", "(?) rendezvous cuda_copy, fenced write to remote, frag host", "rc_mlx5/mlx5_0:1/path0")
)
"""With a NIC, in the words of UCX's documentation: no such node was to be had."""

UCX_1_21 = """\
[1.7] [vm:2311 :0]   +--------------------------+-------------------------------------------------------------+
[1.7] [vm:2311 :0]   | ucp_context_0 self cfg#0 | tagged message by ucp_tag_send* from host memory            |
[1.7] [vm:2311 :0]   +--------------------------+-----------------------------------------------+-------------+
[1.7] [vm:2311 :0]   | 0                0..8184 | eager short                                   | self/memory |
[1.7] [vm:2311 :0]   | 0             8185..8191 | multi-frag eager copy-in copy-out             | self/memory |
[1.7] [vm:2311 :0]   | 1                8K..inf | (?) rendezvous copy from mapped remote memory | self/memory |
[1.7] [vm:2311 :0]   +--------------------------+-----------------------------------------------+-------------+
"""
