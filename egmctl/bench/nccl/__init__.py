"""NCCL's own bandwidth between the GPUs of this node, by PyTorch or nccl-tests if one of them is installed.

``plan`` decides what can be measured, ``run`` starts the processes and gathers what they report; ``torch_rank`` and
``tests_process`` are those processes. ``log`` and ``table`` read what NCCL and nccl-tests print. docs/bench.md says how
it is measured and what it means.
"""
