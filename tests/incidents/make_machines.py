"""Write machines/*.json.gz: a shipped machine with the facts of one published thread.

A state of states.jsonl names its machine and its source. The function of the same name in makers/ changes what that
thread states, and nothing else, so that a reader can compare the two. Run it from the repository's root:

    python -m tests.incidents.make_machines
"""

import gzip
import importlib
import json
import pkgutil
from pathlib import Path

from tests.incidents import makers
from tests.incidents.makers.parts import MAKERS


def write() -> None:
    """Write every machine. The files depend on their contents alone, not on the time."""
    for module in pkgutil.iter_modules(makers.__path__):
        importlib.import_module(f"{makers.__name__}.{module.name}")
    folder = Path(__file__).parent / "machines"
    folder.mkdir(exist_ok=True)
    for name, maker in MAKERS.items():
        text = json.dumps(maker(), separators=(",", ":")).encode()
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    write()
