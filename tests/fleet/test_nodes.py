"""Which nodes a node set names: no shell runs what is in it, nothing is expanded before it is counted."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from egmctl.errors import UsageError
from egmctl.fleet import nodes as module
from egmctl.fleet.folder import Folder, new_folder
from egmctl.fleet.nodes import check_names, select_nodes
from egmctl.fleet.session import old_session
from egmctl.model.record import Command
from tests.conftest import RunEgmctl

LOCAL = """\
[Main]
default: local
[local]
map: sed -n 's/^$GROUP:\\(.*\\)/\\1/p' $CFGDIR/groups.d/local.cfg
all: sed -n 's/^all:\\(.*\\)/\\1/p' $CFGDIR/groups.d/local.cfg
list: sed -n 's/^\\([0-9A-Za-z_-]*\\):.*/\\1/p' $CFGDIR/groups.d/local.cfg
"""
"""``groups.conf`` of groups in a file, as a fresh install of ClusterShell has it."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of groups that tests may change; the names of its files are ClusterShell's."""
    folder = tmp_path / "clustershell"
    (folder / "groups.d").mkdir(parents=True)
    (folder / "groups.conf").write_text(LOCAL)
    (folder / "groups.d" / "local.cfg").write_text("gpu: node[1-3]\n")
    monkeypatch.setattr(module, "DEF_GROUPS_CONFIGS", [str(folder / "groups.conf")])
    monkeypatch.chdir(tmp_path)
    return folder


def refused(*wanted: str) -> str:
    with pytest.raises(UsageError) as caught:
        select_nodes(wanted, ())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[08-10]", ("node08", "node09", "node10")),
        ("r[1-2]n[1,3]", ("r1n1", "r1n3", "r2n1", "r2n3")),
        ("n[1-9/4]", ("n1", "n5", "n9")),
        ("n[1-4]!n[2-3]", ("n1", "n4")),
        ("a,b-x.example.org", ("a", "b-x.example.org")),
    ],
)
def test_node_sets(text: str, names: tuple[str, ...]) -> None:
    assert select_nodes([text], []) == names
    assert select_nodes([text, "also"], ["also"]) == names


@pytest.mark.parametrize(
    ("wanted", "excluded", "sentence"),
    [
        ([], [], "no nodes: name them, as in -w node[01-72]"),
        (["a"], ["a"], "no nodes: -w names none, or -x excludes all of them"),
        (["node[1-"], [], "-w cannot be read: "),
        (["a"], ["b["], "-x cannot be read: "),
        (["-oProxyCommand=touch"], [], "is no name of a node"),
        (["../../etc"], [], "is no name of a node"),
        (["a$(b)"], [], "is no name of a node"),
        (["a" * 201], [], "is no name of a node: at most 200"),
    ],
)
def test_node_sets_that_name_none(wanted: list[str], excluded: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        select_nodes(wanted, excluded)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("prefix", ["@x/p", "@local:x", "@x", "-n @x", "@*x"])
@pytest.mark.parametrize("end", ["'; touch PWNED; echo '", "$(touch PWNED)", "`touch PWNED`", "|touch PWNED", " PWNED"])
def test_no_shell_runs_what_is_in_a_name(site: Path, prefix: str, end: str) -> None:
    (site / "groups.conf").write_text("[Main]\ndefault: local\n[local]\nmap: echo $GROUP\nlist: echo x\nall: echo n1\n")
    refused(prefix + end)
    assert not (site.parent / "PWNED").exists()
    assert not (site / "PWNED").exists()


@pytest.mark.processes
def test_what_a_group_holds_is_asked_for_no_more_freely(site: Path) -> None:
    (site / "groups.d" / "local.cfg").write_text("bad: @x';touch${IFS}PWNED;'\nhuge: n[1-100000000]\n")
    assert "is no name of a group" in refused("@bad")
    assert "at most 100000 nodes" in refused("@huge")
    assert not (site / "PWNED").exists()


@pytest.mark.processes
def test_groups_of_the_site_count_and_others_are_refused_with_those_that_there_are(site: Path) -> None:
    (site / "groups.d" / "local.cfg").write_text("gpu: node[1-3]\nrack1: @gpu,node9\nspare:\n")
    assert select_nodes(["@gpu"], []) == ("node1", "node2", "node3")
    assert select_nodes(["@rack1"], ["node2"]) == ("node1", "node3", "node9")
    assert refused("@gpus") == "-w: there is no group @gpus; there are @gpu, @rack1, @spare"
    assert refused("@nowhere:gpu") == "-w: there is no source of groups 'nowhere'"
    assert "no nodes" in refused("@spare")


@pytest.mark.processes
def test_a_source_that_lists_no_groups_is_asked(site: Path) -> None:
    (site / "groups.conf").write_text("[Main]\ndefault: s\n[s]\nmap: test $GROUP = rack && echo n[1-2] || true\n")
    assert select_nodes(["@rack"], []) == ("n1", "n2")
    assert refused("@other") == "-w: there is no group @other; none is defined"


def test_where_no_groups_are_configured_it_is_said(site: Path) -> None:
    (site / "groups.conf").unlink()
    for text in ("@gpu", "@local:gpu", "node*"):
        assert refused(text) == "-w: no groups of nodes are configured for ClusterShell here"


def test_a_list_of_groups_is_no_list_of_nodes(site: Path) -> None:
    assert site.is_dir()
    assert "names groups, not nodes" in refused("@@local")


@pytest.mark.parametrize(
    "configuration",
    ["not an ini file", "[Main]\ndefault: gone\n", "[Main]\ndefault: a\n[a]\nall: x\n", "[a]\nmap: %(\n", "\0"],
)
@pytest.mark.processes
def test_a_broken_configuration_is_one_sentence(site: Path, configuration: str) -> None:
    (site / "groups.conf").write_text(configuration)
    refused("@gpu")


@pytest.mark.parametrize(
    "text",
    [
        "node[1-100000000]",
        "n[1-100001]",
        "a[1-1000]b[1-1000]",
        "a[1-99999],b[1-99999]",
        "n[1-100000000/100]",
        "node99999999[1-10]",
        "n[0-999999999999999999]",
        "n[1-60000,60001-120000]",
        "n[1-3]!m[1-1000000000]",
    ],
)
def test_sizes_are_counted_before_they_are_expanded(text: str) -> None:
    began = time.process_time()
    assert "nodes can be queried at once" in refused(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("part", ["1-x", "-5", "-8--4", "\uff11-\uff13", "1-2-3", "", "1" * 20, "1-2/x"])
def test_what_is_no_range_is_refused_before_it_is_expanded(part: str) -> None:
    assert refused(f"n[{part}]").startswith(f"-w: {part!r} is no range of numbers such as 1-72")


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "../x", "a b", "a\nb", ""])
def test_names_are_names(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a node"):
        check_names([name])


def _folder(path: Path, **asked: object) -> Path:
    """An earlier run's folder, with what it asked changed."""
    (path / "nodes").mkdir(parents=True)
    question = {"command": "doctor", "arguments": [], "nodes": ["a"], "remote_command": "egmctl", "version": ""} | asked
    answer = {"node": "a", "reach": "answered", "exit_code": 0, "file": "nodes/../../secret"}
    result = {"asked": question, "folded": "a", "launcher": "ssh", "folder": "x", "started_at": "", "finished": True}
    result |= {"counts": {}, "answers": [answer]}
    document = {"schema": "egmctl.fleet/2", "tool": "", "exit_code": 0, "machine": None, "errors": [], "result": result}
    (path / "fleet.json").write_text(json.dumps(document))
    return path


def test_an_earlier_run_asks_each_node_once(tmp_path: Path) -> None:
    began = time.process_time()
    with pytest.raises(UsageError, match="node a is named twice"):
        old_session(Command.DOCTOR, _folder(tmp_path / "run", nodes=["a"] * 100_000))
    assert time.process_time() - began < 10


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "egmctl.topo/2"}', '{"schema": "egmctl.fleet/2"}'])
def test_a_report_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    folder = _folder(tmp_path / "run")
    (folder / "fleet.json").write_text(content)
    with pytest.raises(UsageError, match=r"^file .*fleet\.json is not "):
        old_session(Command.DOCTOR, folder)


def test_an_earlier_run_names_no_node_that_is_none(tmp_path: Path) -> None:
    """A folder comes from anywhere: its nodes become words of the launcher and names of files."""
    with pytest.raises(UsageError, match="is no name of a node"):
        old_session(Command.DOCTOR, _folder(tmp_path / "run", nodes=["-oProxyCommand=touch x"]))


def test_an_earlier_run_of_another_command_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is of 'egmctl fleet doctor', not of 'egmctl fleet topo'"):
        old_session(Command.TOPO, _folder(tmp_path / "run"))


def test_an_answer_of_an_earlier_run_is_looked_for_in_its_own_file_only(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "run")
    (tmp_path / "secret").write_text("{}")
    session = old_session(Command.DOCTOR, folder)
    assert session.answers == {}, "nodes/../../secret is not its document"


def test_an_earlier_run_of_somebody_else_is_not_gone_on_with(tmp_path: Path) -> None:
    """What it says would be run on the nodes."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    folder = _folder(tmp_path / "run")
    for owned in (folder / "fleet.json", folder / "nodes", folder):
        os.chown(owned, 12345, 12345)
        with pytest.raises(UsageError, match="belongs to user 12345: --resume would run what it says on the nodes"):
            old_session(Command.DOCTOR, folder)
        os.chown(owned, 0, 0)


def test_results_are_written_into_ones_own_folder_only_and_through_no_link(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (folder / "nodes/.node01.part").symlink_to(victim)
    with Folder(folder).spool("node01") as file:
        file.write(b"what a node sent")
    assert victim.read_text() == "untouched"
    (folder / "fleet.json").rename(tmp_path / "elsewhere.json")
    (folder / "fleet.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UsageError, match="is a link"):
        old_session(Command.DOCTOR, folder)
    if os.geteuid() == 0:
        (tmp_path / "given").mkdir()
        os.chown(tmp_path / "given", 12345, 12345)
        with pytest.raises(UsageError, match="belongs to user 12345, who could redirect what is written there"):
            new_folder(tmp_path / "given", Command.DOCTOR, datetime.now(timezone.utc))


def test_options_of_an_earlier_run_are_checked_as_new_ones_are(egmctl: RunEgmctl, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "run", arguments=["-o", "/etc/passwd", "--force"])
    ended = egmctl("fleet", "doctor", "--resume", str(folder), env={"PATH": str(tmp_path)})
    assert (ended.code, ended.out) == (2, "")
    assert "after --, -o is not allowed" in ended.err
