"""Checked calls to the CUDA driver and NVML, the known causes of their errors, and the breadcrumb of the current call.

``facts``, ``gpu`` and ``launch`` build on this package. Importing it loads no library; only child processes import
``cuda`` and ``nvml``.
"""
