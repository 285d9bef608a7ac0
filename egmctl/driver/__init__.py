"""The driver's libraries behind one checked layer: CUDA and NVML calls, their error signatures, the breadcrumb.

Below ``facts``, ``gpu`` and ``launch``. Importing this package loads nothing; ``cuda`` and ``nvml`` are for child
processes alone.
"""
