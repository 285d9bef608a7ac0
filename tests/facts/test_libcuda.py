"""Which libcuda a process has loaded, from its own memory map."""

from __future__ import annotations

import _ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1])
from egmctl.facts import cuda
from egmctl.model.codec import to_json
print(json.dumps(to_json(cuda._libcuda())))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("file", "version", "compat"),
    [
        ("cuda-13.0/compat/libcuda.so.580.65.06", '"580.65.06"', "true"),
        ("lib64/libcuda.so.570.86.15", '"570.86.15"', "false"),
        ("stubs/libcuda.so", "null", "false"),
        ("lib64/libother.so.1", "null", "null"),
    ],
)
def test_the_version_and_the_folder_are_those_of_the_file_behind_the_link(
    tmp_path: Path, file: str, version: str, compat: str
) -> None:
    library = tmp_path / file
    library.parent.mkdir(parents=True)
    shutil.copy(_ctypes.__file__, library)
    link = tmp_path / "libcuda.so.1"
    link.symlink_to(library)
    ended = subprocess.run([sys.executable, "-c", READ, str(link)], capture_output=True, text=True, check=True)
    assert f'"libcuda_version": {version}' in ended.stdout
    assert f'"libcuda_compat": {compat}' in ended.stdout
