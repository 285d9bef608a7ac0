"""``--gpus`` and ``--numa``: what they accept, in which order, and one sentence for everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.api.options import select_gpus, select_numa
from egmctl.errors import UsageError
from egmctl.model.gpu import Gpu
from egmctl.model.host import NumaKind
from egmctl.model.machine import Machine
from tests.topology import builders
from tests.topology.builders import grace, node

HERE = "the GPUs here are 0-7 (egmctl topo -v shows their UUIDs and bus ids)"
EIGHT = tuple(builders.gpu(i) for i in range(8))


def chosen(text: str, gpus: tuple[Gpu, ...] = EIGHT) -> list[int]:
    return [gpu.index for gpu in select_gpus(text, gpus)]


def refused(text: str, gpus: tuple[Gpu, ...] = EIGHT) -> str:
    with pytest.raises(UsageError) as caught:
        select_gpus(text, gpus)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("0", [0]),
        ("0-3,5", [0, 1, 2, 3, 5]),
        ("0-7/2", [0, 2, 4, 6]),
        ("5,0,5,0-1", [5, 0, 1]),
        (" 1 , 2 ", [1, 2]),
        ("3,all", [3, 0, 1, 2, 4, 5, 6, 7]),
        ("GPU-00000003-0000-0000-0000-000000000000", [3]),
        ("gpu-00000003", [3]),
        ("0000:13:00.0", [3]),
        ("13:00.0", [3]),
        ("13:00", [3]),
        ("00000000:13:00.0", [3]),
    ],
)
def test_gpus(text: str, indices: list[int]) -> None:
    assert chosen(text) == indices


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "--gpus is empty; the GPUs here are 0-7"),
        ("  ", "--gpus is empty; the GPUs here are 0-7"),
        ("9", "--gpus '9': there is no GPU 9; the GPUs here are 0-7"),
        ("6-9", "--gpus '6-9': there is no GPU 8; the GPUs here are 0-7"),
        ("3-1", "--gpus '3-1' runs backwards; the GPUs here are 0-7"),
        ("0-7/0", "--gpus '0-7/0' has a step of 0; the GPUs here are 0-7"),
        ("0,,1", "--gpus '0,,1' has an empty part; the GPUs here are 0-7"),
        ("0,", "--gpus '0,' has an empty part; the GPUs here are 0-7"),
        ("x", "--gpus 'x' is not a GPU; the GPUs here are 0-7"),
        ("1-", "--gpus '1-' is not a GPU; the GPUs here are 0-7"),
        ("-1", "--gpus '-1' is not a GPU; the GPUs here are 0-7"),
        ("1/2", "--gpus '1/2' is not a GPU; the GPUs here are 0-7"),
        ("\u0663", "--gpus '\u0663' is not a GPU; the GPUs here are 0-7"),
        ("0-99999999999", "--gpus '0-99999999999': there is no GPU 8; the GPUs here are 0-7"),
        ("GPU-ffff", f"--gpus 'GPU-ffff' is no GPU's UUID or PCI bus id; {HERE}"),
        ("ff:00.0", f"--gpus 'ff:00.0' is no GPU's UUID or PCI bus id; {HERE}"),
        ("0000:1b:zz.0", f"--gpus '0000:1b:zz.0' is no GPU's UUID or PCI bus id; {HERE}"),
        ("GPU-0000000", f"--gpus 'GPU-0000000' fits {', '.join(f'GPU{n}' for n in range(8))}; {HERE}"),
    ],
)
def test_gpus_that_do_not_exist_or_make_no_sense(text: str, sentence: str) -> None:
    assert refused(text) == sentence


def test_a_bus_id_in_two_domains_needs_the_domain() -> None:
    twins = (EIGHT[0], replace(EIGHT[1], bus_id="0001:10:00.0"))
    assert "fits GPU0, GPU1; " in refused("10:00.0", twins)
    assert chosen("0001:10:00.0", twins) == [1]


def test_without_any_gpu_even_all_is_refused() -> None:
    assert refused("all", ()) == "--gpus all selects nothing: there is no GPU here"


def test_control_characters_and_endless_texts_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in refused("\x1b[31m")
    assert len(refused("9" * 100_000)) < 200


@given(st.lists(st.integers(0, 7), min_size=1))
def test_a_list_of_indices_gives_them_back_in_order_without_duplicates(indices: list[int]) -> None:
    assert chosen(",".join(map(str, indices))) == list(dict.fromkeys(indices))


@given(st.integers(0, 7), st.integers(0, 7), st.integers(1, 9))
def test_a_span_is_a_range(first: int, last: int, step: int) -> None:
    if first <= last:
        assert chosen(f"{first}-{last}/{step}") == list(range(first, last + 1, step))


@given(st.text())
def test_any_text_selects_something_or_is_one_sentence(text: str) -> None:
    sentence = ""
    try:
        chosen = select_gpus(text, EIGHT)
    except UsageError as error:
        chosen, sentence = (), str(error)
    assert chosen or (sentence.startswith("--gpus ") and "\n" not in sentence)


MACHINE = grace(4, nodes=[node(0), node(1), node(2, NumaKind.MEMORY_ONLY), node(3, NumaKind.EMPTY)])


@pytest.mark.parametrize(
    ("text", "nodes"), [("all", (0, 1)), ("1", (1,)), ("1,0,1", (1, 0)), ("0-1", (0, 1)), ("local", (0, 1))]
)
def test_numa_names_nodes_with_cpus_and_local_is_where_the_gpus_sit(text: str, nodes: tuple[int, ...]) -> None:
    assert select_numa(text, MACHINE) == nodes


def test_local_is_where_the_gpus_that_were_chosen_sit() -> None:
    assert select_numa("local", MACHINE, (MACHINE.gpus or ())[2:]) == (1,)


@pytest.mark.parametrize(
    ("text", "machine", "sentence"),
    [
        ("7", MACHINE, "--numa '7': there is no CPU NUMA node 7; the CPU NUMA nodes here are 0-1"),
        ("2", MACHINE, "--numa '2': there is no CPU NUMA node 2; the CPU NUMA nodes here are 0-1"),
        ("", MACHINE, "--numa is empty; the CPU NUMA nodes here are 0-1"),
        ("1-0", MACHINE, "--numa '1-0' runs backwards; the CPU NUMA nodes here are 0-1"),
        ("near", MACHINE, "--numa 'near' is not a CPU NUMA node; the CPU NUMA nodes here are 0-1"),
        (
            *("local", builders.machine([], nodes=[node(0)])),
            "--numa local: no GPU here says which NUMA node it belongs to; the CPU NUMA nodes here are 0",
        ),
    ],
)
def test_other_numa_nodes_are_refused(text: str, machine: Machine, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        select_numa(text, machine)
    assert str(caught.value) == sentence
