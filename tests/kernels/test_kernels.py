"""Every kernel compiles for every architecture without a GPU, and the cache trusts nobody else's files."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from egmctl.gpu import program
from egmctl.gpu.program import (
    ARCHITECTURES,
    KERNELS,
    NEWEST_PTX,
    CompileError,
    NoKernels,
    compile_source,
    compiled,
    target_of,
)
from tests.tiers import few

FOLDER = Path(program.__file__).parent / "kernels"
ELF = b"\x7fELF"


@pytest.fixture
def nvrtc() -> None:
    """Skip where NVRTC is not installed."""
    try:
        program._supported()
    except NoKernels as error:
        pytest.skip(str(error))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the cache a folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "egmctl"


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("target", few((*ARCHITECTURES, NEWEST_PTX), every=3))
@pytest.mark.parametrize("source", KERNELS)
def test_every_kernel_compiles_for_every_architecture(source: str, target: str) -> None:
    image = compile_source(source, (FOLDER / source).read_bytes(), target)
    assert image.startswith(ELF) == (target != NEWEST_PTX)
    if target == NEWEST_PTX:
        assert f".target {target.replace('compute', 'sm')}".encode() in image
    for kernel in KERNELS[source]:
        assert kernel.encode() in image


@pytest.mark.parametrize(
    ("architecture", "target"),
    [
        *((architecture, architecture) for architecture in ARCHITECTURES),
        ("sm_86", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_121", "sm_120"),
        ("sm_130", NEWEST_PTX),
        ("sm_75", "sm_75"),
        ("sm_110", "sm_110"),
    ],
)
def test_a_gpu_runs_its_own_code_or_that_of_its_major_and_a_newer_one_ptx(architecture: str, target: str) -> None:
    assert target_of(architecture) == target


def test_the_ptx_is_of_the_newest_architecture() -> None:
    assert ARCHITECTURES[-1].replace("sm_", "compute_") == NEWEST_PTX
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES, key=program._number)


def test_the_registry_names_every_source_and_every_kernel_with_its_parameters() -> None:
    declared = {
        path.name: dict(re.findall(r"__global__ void (\w+)\(([^)]*)\)", path.read_text()))
        for path in FOLDER.glob("*.cu")
    }
    counted = {
        source: {name: len(text.split(",")) for name, text in kernels.items()} for source, kernels in declared.items()
    }
    assert counted == KERNELS
    parameters = [
        parameter for kernels in declared.values() for text in kernels.values() for parameter in text.split(",")
    ]
    assert all(re.search(r"\*|u64|long long", parameter) for parameter in parameters), "each has 8 bytes"


def test_sources_include_nothing_so_that_no_headers_are_needed() -> None:
    assert not [path.name for path in FOLDER.glob("*.cu") if "#include" in path.read_text()]


@pytest.mark.usefixtures("nvrtc")
def test_a_rejected_source_is_an_error_with_the_compilers_log() -> None:
    with pytest.raises(
        CompileError,
        match=r"bad\.cu for sm_90: nvrtcCompileProgram failed: NVRTC_ERROR_COMPILATION(.|\n)*undefined_name",
    ):
        compile_source("bad.cu", b'extern "C" __global__ void bad() { undefined_name(); }', "sm_90")


@pytest.mark.usefixtures("nvrtc")
def test_an_architecture_that_the_compiler_does_not_know_is_named() -> None:
    with pytest.raises(NoKernels, match=r"cannot compile for sm_999: a newer one is needed"):
        compile_source("gate.cu", b"", "sm_999")


@pytest.mark.usefixtures("cache")
def test_without_cache_and_nvrtc_the_message_has_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGMCTL_NO_NVRTC", "1")
    with pytest.raises(NoKernels, match=r"not in the cache, and NVRTC is not installed: pip install 'egmctl\[cu13\]'"):
        compiled("gate.cu", "sm_90")


@pytest.mark.long
@pytest.mark.usefixtures("nvrtc", "cache")
def test_kernels_that_ship_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.compile_all(tmp_path / "compiled")
    monkeypatch.setattr(program, "SHIPPED", tmp_path / "compiled")
    monkeypatch.setenv("EGMCTL_NO_NVRTC", "1")
    targets = {target_of(architecture) for architecture in (*ARCHITECTURES, "sm_130")}
    images = {compiled(source, target) for source in KERNELS for target in targets}
    assert len(images) == len(KERNELS) * (len(ARCHITECTURES) + 1)
    with pytest.raises(NoKernels, match="not in the cache"):
        compiled("gate.cu", "sm_75")


@pytest.mark.usefixtures("nvrtc")
class TestCache:
    def test_a_second_request_is_answered_from_disk(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = compiled("gate.cu", "sm_90")
        assert [path.read_bytes() for path in cache.iterdir()] == [first]
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        monkeypatch.setattr(program, "compile_source", lambda *_: pytest.fail("compiled again"))
        assert compiled("gate.cu", "sm_90") == first

    def test_architectures_have_entries_of_their_own(self, cache: Path) -> None:
        assert compiled("gate.cu", "sm_90") != compiled("gate.cu", "sm_100")
        assert len(list(cache.iterdir())) == 2

    @pytest.mark.parametrize("mode", [0o770, 0o707])
    def test_a_folder_that_others_may_write_to_is_passed_over(self, cache: Path, mode: int) -> None:
        cache.mkdir()
        cache.chmod(mode)
        assert compiled("gate.cu", "sm_90").startswith(ELF)
        assert not list(cache.iterdir())

    def test_a_folder_of_someone_else_is_passed_over(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.mkdir(mode=0o700)
        monkeypatch.setattr("os.geteuid", lambda: cache.stat().st_uid + 1)
        assert compiled("gate.cu", "sm_90").startswith(ELF)
        assert not list(cache.iterdir())

    def test_another_cuda_has_entries_of_its_own(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled("gate.cu", "sm_90")
        monkeypatch.setattr(program, "bindings_version", lambda: "12.9.4")
        compiled("gate.cu", "sm_90")
        assert len(list(cache.iterdir())) == 2

    @pytest.mark.parametrize("home", [None, "", "relative"])
    def test_no_home_is_no_cache_and_no_error(
        self, home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.chdir(tmp_path)
        if home is None:
            monkeypatch.delenv("HOME", raising=False)
        else:
            monkeypatch.setenv("HOME", home)
        assert compiled("gate.cu", "sm_90").startswith(ELF)
        assert not list(tmp_path.iterdir())

    def test_a_cache_that_cannot_be_made_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert compiled("gate.cu", "sm_90").startswith(ELF)
