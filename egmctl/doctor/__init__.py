"""Checks for what breaks EGM, P2P, IPC, fabric handles and GPUDirect RDMA: pure functions of a machine's facts."""
