"""The NVSentinel example against its contract: exit codes, and the event that a platform connector receives.

The contract is https://docs.nvidia.com/nvsentinel/tutorials/writing-a-preflight-check and the messages those of
NVIDIA/NVSentinel, data-models/protobufs/health_event.proto (read on 2026-11-28). The connector here knows the bytes by
the field numbers of that file, which it states itself: a number that the example has wrong arrives as another field.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
import yaml

from egmctl.doctor.runner import CHECKS
from tests.command_server import SERVER
from tests.conftest import ROOT
from tests.docs.examples import SICK

PLACE = ROOT / "docs" / "examples" / "nvsentinel"
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"

EVENTS = ("", "version", "events")
EVENT = (
    *("", "version", "agent", "componentClass", "checkName", "isFatal", "isHealthy", "message", "recommendedAction"),
    *("errorCode", "entitiesImpacted", "metadata", "generatedTimestamp", "nodeName", "quarantineOverrides"),
    *("drainOverrides", "processingStrategy"),
)
"""The fields in the order of their numbers, from 1."""
TIME = ("", "seconds", "nanos")
STRATEGIES = {"EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2}
CONTACT_SUPPORT = 5


def fields(data: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a message by name: numbers and bytes, in a list if it is repeated."""
    read: dict[str, list[int | bytes]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        assert key & 7 in (0, 2), "a number, or a string, message or list"
        value: int | bytes = varint()
        if key & 7 == 2:
            assert isinstance(value, int)
            at += value
            value = data[at - value : at]
        read.setdefault(names[key >> 3], []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in read.items()}


class Connector:
    """A platform connector at a socket: what it received, and the status that it answers with."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.requests: list[bytes] = []
        self.credentials: list[str] = []
        self.refusal: Any = None
        self._server = grpc.server(ThreadPoolExecutor(1))
        call = grpc.unary_unary_rpc_method_handler(self._receive)
        service, _, method = METHOD.strip("/").partition("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: call}),))
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()

    def _receive(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        self.credentials += [value for key, value in context.invocation_metadata() if key == "authorization"]
        if self.refusal is not None:
            context.abort(self.refusal, "not from you")
        return b""

    @property
    def event(self) -> dict[str, Any]:
        """The event of the one request."""
        (request,) = self.requests
        batch = fields(request, EVENTS)
        assert batch["version"] == 1
        return fields(batch["events"], EVENT)

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    # A socket's path has at most 107 characters; in pytest's own folder of a test stands the whole name of the test.
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[Connector]:
    connector = Connector(tmp_path / "nvsentinel.sock")
    yield connector
    connector.stop()


def answered(state: str, code: int, *failures: str, usable: str = "pass", kind: str = "gpu") -> str:
    """Return a script that answers as the doctor.

    Parameters
    ----------
    failures
        The failed checks.
    usable
        The status of the check that all GPUs of the node can be used.
    kind
        The kind of place of the failures.
    """
    place = {"kind": kind, "label": "GPU2"}
    causes = [
        {"status": "fail", "finding": {"check": check, "summary": "it is broken", "place": place}} for check in failures
    ]
    findings = [{"check": "dev.count-consistency", "status": usable}]
    answer = {"state": state, "word": state.upper(), "sentence": "as it is", "causes": causes}
    document = json.dumps({"exit_code": code, "answer": answer, "errors": [], "result": {"findings": findings}})
    return f"cat <<'EOF'\n{document}\nEOF\nexit {code}"


def real(machine: str) -> str:
    """Return a script that asks the real doctor about a shipped machine."""
    return f'exec {shlex.join(SERVER.stand_in())} "$@" --machine {machine}'


def check(place: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the example with a program in place of egmctl, as the webhook starts it."""
    program = place / "egmctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    settings = {
        "NODE_NAME": "node7",
        "PLATFORM_CONNECTOR_SOCKET": f"unix://{place}/nvsentinel.sock",
        "PROCESSING_STRATEGY": "EXECUTE_REMEDIATION",
        "EGMCTL": str(program),
        "PATH": os.environ["PATH"],
        **environment,
    }
    command = [sys.executable, str(PLACE / "preflight.py")]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=120)


HEALTHY, FATAL, NEITHER = (1, 0), (0, 1), (0, 0)
"""What an event says: isHealthy, isFatal."""

MAPPED = [
    (answered("good", 0), HEALTHY, 0),
    (answered("warn", 0), HEALTHY, 0),
    (answered("bad", 1, "nvlink.links"), FATAL, 1),
    (answered("bad", 1, "nvlink.links", "numa.mempolicy-syscalls"), FATAL, 1),
    (answered("bad", 1, "numa.mempolicy-syscalls"), NEITHER, 1),
    (answered("bad", 1, "dev.nodes-missing", "drv.libraries", "drv.versions", "env.visible-devices"), NEITHER, 1),
    (answered("bad", 1, "dev.count-consistency", kind="node"), NEITHER, 1),
    (answered("bad", 1, "dev.count-consistency"), FATAL, 1),
    (answered("incomplete", 3), NEITHER, 0),
    (answered("broke", 4), NEITHER, 0),
    (answered("interrupted", 130), NEITHER, 0),
    ("kill -9 $$", NEITHER, 0),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("script", "said", "code"), MAPPED)
@pytest.mark.processes
def test_an_answer_is_one_event_and_a_code(
    tmp_path: Path, connector: Connector, script: str, said: tuple[int, int], code: int, strategy: str
) -> None:
    """egmctl's 3 must not end as 3, which says that no event was sent; STORE_ONLY holds no pod back."""
    done = check(tmp_path, script, PROCESSING_STRATEGY=strategy)
    event = connector.event
    assert (event.get("isHealthy", 0), event.get("isFatal", 0)) == said, "a default is not on the wire"
    assert event["processingStrategy"] == STRATEGIES[strategy]
    assert event.get("recommendedAction", 0) == (CONTACT_SUPPORT if said == FATAL else 0), "for a person, never a reset"
    assert ("errorCode" in event) == (said != HEALTHY)
    assert done.returncode == (0 if strategy == "STORE_ONLY" else code), done.stderr


@pytest.mark.parametrize("usable", ["note", "unknown", "skip"])
@pytest.mark.processes
def test_a_pod_with_some_gpus_takes_back_no_event_of_others(tmp_path: Path, connector: Connector, usable: str) -> None:
    """A healthy event without entities means all of the node, also the GPU that is broken in another pod."""
    done = check(tmp_path, answered("good", 0, usable=usable))
    assert (done.returncode, connector.requests) == (0, [])


@pytest.mark.processes
def test_an_event_names_node_check_and_fault(tmp_path: Path, connector: Connector) -> None:
    done = check(tmp_path, answered("bad", 1, "nvlink.links", "dev.fell-off-bus"))
    event = connector.event
    assert fields(event.pop("generatedTimestamp"), TIME)["seconds"] > 1_700_000_000
    assert event == {
        "version": 1,
        "agent": b"preflight-egmctl",
        "componentClass": b"Node",
        "checkName": b"EgmctlDoctor",
        "isFatal": 1,
        "message": done.stdout.strip().encode(),
        "recommendedAction": CONTACT_SUPPORT,
        "errorCode": [b"EGMCTL_DEV_FELL_OFF_BUS", b"EGMCTL_NVLINK_LINKS"],
        "nodeName": b"node7",
        "processingStrategy": STRATEGIES["EXECUTE_REMEDIATION"],
    }
    assert done.stdout.startswith("egmctl: BAD: as it is; GPU2: it is broken [nvlink.links]; ")


@pytest.mark.processes
def test_what_was_not_judged_holds_a_pod_back_where_that_is_asked_for(tmp_path: Path, connector: Connector) -> None:
    assert check(tmp_path, answered("incomplete", 3), EGMCTL_UNDETERMINED="block").returncode == 1
    assert connector.event["errorCode"] == b"EGMCTL_NOT_DETERMINED"


WRONG = [
    {"NODE_NAME": ""},
    {"PLATFORM_CONNECTOR_SOCKET": ""},
    {"PROCESSING_STRATEGY": "STORE"},
    {"EGMCTL": "/nonexistent/egmctl"},
    {"EGMCTL_ARGS": "--nonsense"},
    {"EGMCTL_ARGS": "--skip 'imex.channel"},
]


@pytest.mark.parametrize("environment", WRONG)
@pytest.mark.processes
def test_a_wrong_configuration_ends_with_2_and_sends_nothing(
    tmp_path: Path, connector: Connector, environment: dict[str, str]
) -> None:
    done = check(tmp_path, f'exec {shlex.join(SERVER.stand_in())} "$@" --machine gb200-tray', **environment)
    assert (done.returncode, done.stdout, connector.requests) == (2, "", [])
    assert done.stderr.splitlines()[-1].startswith("preflight-egmctl: ")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.processes
def test_an_event_that_the_connector_refuses_ends_with_3(tmp_path: Path, connector: Connector, strategy: str) -> None:
    connector.refusal = grpc.StatusCode.PERMISSION_DENIED
    done = check(tmp_path, answered("bad", 1, "nvlink.links"), PROCESSING_STRATEGY=strategy)
    assert done.returncode == 3
    assert "not from you" in done.stderr
    assert len(connector.requests) == 1, "a refusal is not tried again"


@pytest.mark.processes
def test_a_token_is_shown_to_the_connector_and_one_that_cannot_be_read_sends_nothing(
    tmp_path: Path, connector: Connector
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert check(tmp_path, answered("good", 0), PLATFORM_CONNECTOR_TOKEN_PATH=str(token)).returncode == 0
    assert connector.credentials == ["Bearer secret"]
    assert check(tmp_path, answered("good", 0), PLATFORM_CONNECTOR_TOKEN_PATH=f"{token}.gone").returncode == 3
    assert len(connector.requests) == 1


@pytest.mark.parametrize(("machine", "events"), [("hgx-h200x4", 1), ("h200-cgroup-denied", 0)])
@pytest.mark.long
@pytest.mark.processes
def test_the_real_doctor_says_whether_all_gpus_can_be_used(
    tmp_path: Path, connector: Connector, machine: str, events: int
) -> None:
    assert check(tmp_path, real(machine)).returncode == 0
    assert len(connector.requests) == events


@pytest.mark.long
@pytest.mark.processes
def test_the_real_doctor_fails_a_sick_node_by_name(tmp_path: Path, connector: Connector) -> None:
    machine, reason = next(iter(SICK.items()))
    assert check(tmp_path, real(machine)).returncode == 1
    check_id, _, summary = reason.removeprefix("egmctl: ").partition(": ")
    message = connector.event["message"].decode()
    assert summary in message
    assert f"[{check_id}]" in message
    assert connector.event["isFatal"] == 1


def test_both_limits_leave_time_within_a_minute() -> None:
    (limits,) = re.findall(r"^DOCTOR_S, CONNECTOR_S = ([0-9]+), ([0-9]+)$", source(), re.MULTILINE)
    assert sum(map(int, limits)) < 60


def test_the_checks_of_what_a_container_was_given_are_checks() -> None:
    (block,) = re.findall(r"^GIVEN_TO_THE_CONTAINER = \{(.*?)^\}", source(), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r'"([^"]+)"', block))
    assert named
    assert named <= {known.id for known in CHECKS}


def test_the_chart_and_the_image_name_what_the_program_reads() -> None:
    (entry,) = yaml.safe_load((PLACE / "values.yaml").read_text())["preflight"]["initContainers"]
    assert entry["defaultEnabled"] is False
    assert all(f'"{variable["name"]}"' in source() for variable in entry["env"])
    image = (PLACE / "Dockerfile").read_text()
    assert f"{entry['image']['repository']}:{entry['image']['tag']}" in image
    assert "COPY preflight.py " in image


def source() -> str:
    return (PLACE / "preflight.py").read_text()
