"""Assembles the functions of ``egmctl/gpu/machine_code/`` into its ``code.json``, which ships.

    python tools/assemble.py            write it
    python tools/assemble.py --check    write nothing; exit 1 if it is not what would be written

It needs GNU as for each architecture. Where one is missing, it says so and leaves that architecture's code as it is.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from generated import ROOT, settle

SOURCES = ROOT / "egmctl" / "gpu" / "machine_code"
CODE = SOURCES / "code.json"


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    shipped = json.loads(CODE.read_text(encoding="ascii")) if CODE.exists() else {}
    codes = {}
    for source in sorted(SOURCES.glob("*.S")):
        name, architecture = source.stem, source.stem.rpartition(".")[2]
        if shutil.which(assembler(architecture)):
            codes[name] = assembled(source).hex()
        elif name in shipped:
            sys.stderr.write(f"{name} stays as it is: there is no {assembler(architecture)} here\n")
            codes[name] = shipped[name]
    return settle(arguments, CODE, json.dumps(codes, indent=1) + "\n", "tools/assemble.py")


def assembler(architecture: str) -> str:
    """Return the name of the program that assembles for an architecture, as Debian and Ubuntu call it."""
    return "as" if architecture == platform.machine() else f"{architecture}-linux-gnu-as"


def assembled(source: Path) -> bytes:
    """Return the machine code of a source.

    Raises
    ------
    ValueError
        The code refers to an address outside itself, which only a linker could fill in.
    subprocess.CalledProcessError
        The assembler rejects the source; it has said why on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "code.o")
        subprocess.run([assembler(source.stem.rpartition(".")[2]), "-o", target, source], check=True)
        with open(target, "rb") as file:
            elf = ELFFile(file)
            if any(isinstance(section, RelocationSection) for section in elf.iter_sections()):
                raise ValueError(f"{source.name} needs a linker: give what it refers to a local label")
            code: bytes = elf.get_section_by_name(".text").data()
            return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
