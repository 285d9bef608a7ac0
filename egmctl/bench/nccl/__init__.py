"""NCCL's own bandwidth between the GPUs of this node, by PyTorch or nccl-tests if one of them is installed.

``plan`` decides what can be measured; ``run`` starts the processes on this node, ``job`` those of the tasks of a job.
``rounds`` gathers what they report and ``outcome`` makes the record of it; ``torch_rank`` and ``tests_process`` are
those processes. ``log`` and ``table`` read what NCCL and nccl-tests print. docs/bench.md says how it is measured and
what it means.
"""
