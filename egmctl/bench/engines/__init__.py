"""The code of the engines, which only a worker imports: the work that each launches, and how it verifies the bytes.

A new engine needs a member of :class:`egmctl.model.task.Engine`, a line in :data:`egmctl.bench.engine.ENGINES`, and
code in a file here, in whose ``MEASURE`` it is listed, and the file in ``_FILES`` of the worker
(``egmctl/bench/processes/worker.py``).
"""
