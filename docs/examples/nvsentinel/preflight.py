#!/usr/bin/env python3
"""A preflight check of NVSentinel that asks egmctl's doctor: one event to the platform connector, then an exit code.

The contract is https://docs.nvidia.com/nvsentinel/tutorials/writing-a-preflight-check: the webhook sets NODE_NAME,
PLATFORM_CONNECTOR_SOCKET and PROCESSING_STRATEGY, and 0 is passed, 1 failed, 2 wrong configuration, 3 event not sent.
egmctl's own codes mean something else (docs/exit-codes.md), so that its answer is mapped here:

| the doctor's answer | event | exit code |
|---|---|---|
| good, warn, and this container can use all GPUs of the node | healthy | 0 |
| good, warn, of some GPUs of the node | none | 0 |
| bad | unhealthy and fatal, for a person (CONTACT_SUPPORT) | 1 |
| bad, but this container alone may be the cause | unhealthy, not fatal | 1 |
| incomplete, broke, interrupted, no answer in time | unhealthy, not fatal | 0; 1 with EGMCTL_UNDETERMINED=block |
| used wrongly | none | 2 |

With STORE_ONLY the event is the same, and 1 becomes 0; 2 and 3 stay.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory, timestamp_pb2

DOCTOR_S, CONNECTOR_S = 45, 10
"""Time limits: together with the start of both programs less than a minute."""

DEFAULT_ARGUMENTS = "--skip imex.channel"
"""Without --for the doctor judges what the platform has, and no setting. An IMEX channel is the pod's own."""

GIVEN_TO_THE_CONTAINER = {
    *("dev.cgroup-restricted", "dev.control-nodes", "dev.nodes-missing", "dev.permissions", "drv.libraries"),
    *("drv.versions", "env.limits", "env.visible-devices", "imex.channel", "numa.cpuset-mems"),
    "numa.mempolicy-syscalls",
}
"""Checks of what a container was given: where only these fail, the node has no proven fault."""

ALL_GPUS = "dev.count-consistency"
"""The check that passes where every GPU of the node can be used. As a failure of the node as a whole it is of the
container, which was given fewer than expected; as one of a GPU, e.g. a lost one, it is of the node."""

STRATEGIES = {"EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2}
NONE, CONTACT_SUPPORT = 0, 5
"""Recommended actions. No other is ever recommended: egmctl's remedies are for people."""


class Outcome(NamedTuple):
    """What the doctor's answer means for the node and for the pod."""

    sent: bool
    """Whether an event is sent."""
    healthy: bool
    fatal: bool
    codes: list[str]
    message: str
    exit_code: int


class WrongConfiguration(Exception):
    """The environment or the arguments are wrong."""


def main() -> int:
    try:
        node, socket, strategy = _required("NODE_NAME"), _required("PLATFORM_CONNECTOR_SOCKET"), _strategy()
        outcome = judge(ask_doctor(_arguments()))
    except WrongConfiguration as error:
        print(f"preflight-egmctl: {error}", file=sys.stderr)
        return 2
    print(outcome.message)
    if not outcome.sent:
        return outcome.exit_code
    try:
        send(socket, event(node, strategy, outcome))
    except (OSError, grpc.RpcError) as error:
        print(f"preflight-egmctl: the event was not sent to {socket}: {error}", file=sys.stderr)
        return 3
    return 0 if strategy == STRATEGIES["STORE_ONLY"] else outcome.exit_code


def _required(name: str) -> str:
    if not os.environ.get(name):
        raise WrongConfiguration(f"{name} is not set")
    return os.environ[name]


def _strategy() -> int:
    name = os.environ.get("PROCESSING_STRATEGY") or "EXECUTE_REMEDIATION"
    if name not in STRATEGIES:
        raise WrongConfiguration(f"PROCESSING_STRATEGY is {name}, not one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def _arguments() -> list[str]:
    text = os.environ.get("EGMCTL_ARGS", DEFAULT_ARGUMENTS)
    try:
        return shlex.split(text)
    except ValueError as error:
        raise WrongConfiguration(f"EGMCTL_ARGS is {text!r}: {error}") from error


def ask_doctor(arguments: list[str]) -> dict[str, Any]:
    """Return the doctor's document; one that says so where it gave none or no answer."""
    command = [os.environ.get("EGMCTL", "egmctl"), "doctor", "--json", *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=DOCTOR_S, check=False)
        document = json.loads(done.stdout)
    except OSError as error:
        raise WrongConfiguration(f"{command[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        return _broken(f"the doctor took more than {DOCTOR_S} s")
    except ValueError:
        return _broken(f"the doctor ended with {done.returncode} and without a document")
    if document["exit_code"] == 2:
        raise WrongConfiguration("; ".join(error["message"] for error in document["errors"]))
    return document if document["answer"] else _broken(f"the doctor ended with {done.returncode} and without an answer")


def _broken(sentence: str) -> dict[str, Any]:
    return {"answer": {"state": "broke", "word": "BROKE", "sentence": sentence, "causes": []}}


def judge(document: dict[str, Any]) -> Outcome:
    """Return what a document means.

    A healthy event without entities takes back earlier ones of the whole node, other pods' included. So only an answer
    without a failure, good or with warnings, sends it, and only where all GPUs of the node were judged.
    """
    answer = document["answer"]
    failures = [cause["finding"] for cause in answer["causes"] if cause["status"] == "fail" and cause["finding"]]
    told = [f"{answer['word']}: {answer['sentence']}", *(_told(finding) for finding in failures)]
    message = "egmctl: " + "; ".join(told)
    match answer["state"]:
        case "good" | "warn":
            states = {finding["status"] for finding in document["result"]["findings"] if finding["check"] == ALL_GPUS}
            return Outcome(states == {"pass"}, True, False, [], message, 0)
        case "bad":
            checks = {finding["check"] for finding in failures}
            of_the_node = not failures or not all(map(_is_of_the_container, failures))
            return Outcome(True, False, of_the_node, sorted(map(_code, checks or {"failed"})), message, 1)
        case _:
            blocks = os.environ.get("EGMCTL_UNDETERMINED") == "block"
            return Outcome(True, False, False, [_code("not-determined")], message, int(blocks))


def _is_of_the_container(finding: dict[str, Any]) -> bool:
    if finding["check"] == ALL_GPUS:
        return finding["place"]["kind"] == "node"
    return finding["check"] in GIVEN_TO_THE_CONTAINER


def _told(finding: dict[str, Any]) -> str:
    place = finding["place"]["label"] if finding["place"] else ""
    return f"{place}{': ' if place else ''}{finding['summary']} [{finding['check']}]"


def _code(name: str) -> str:
    return "EGMCTL_" + name.replace(".", "_").replace("-", "_").upper()


def event(node: str, strategy: int, outcome: Outcome) -> Any:
    """Return the request with one event."""
    now = time.time_ns()
    request = HealthEvents(version=1)
    request.events.add(
        version=1,
        agent="preflight-egmctl",
        componentClass="Node",
        checkName="EgmctlDoctor",
        isFatal=outcome.fatal,
        isHealthy=outcome.healthy,
        message=outcome.message,
        recommendedAction=CONTACT_SUPPORT if outcome.fatal else NONE,
        errorCode=outcome.codes,
        generatedTimestamp=timestamp_pb2.Timestamp(seconds=now // 10**9, nanos=now % 10**9),
        nodeName=node,
        processingStrategy=strategy,
    )
    return request


def send(socket: str, request: Any) -> None:
    """Send a request to the platform connector; wait for one that is about to listen.

    Raises
    ------
    OSError
        The token cannot be read.
    grpc.RpcError
        The connector refused the event, or did not answer in time.
    """
    token = os.environ.get("PLATFORM_CONNECTOR_TOKEN_PATH")
    credentials = []
    if token:
        with open(token, encoding="ascii") as file:
            credentials = [("authorization", f"Bearer {file.read().strip()}")]
    with grpc.insecure_channel("unix://" + socket.removeprefix("unix://")) as channel:
        call = channel.unary_unary(
            "/datamodels.PlatformConnector/HealthEventOccurredV1",
            request_serializer=HealthEvents.SerializeToString,
            response_deserializer=empty_pb2.Empty.FromString,
        )
        call(request, timeout=CONNECTOR_S, metadata=credentials, wait_for_ready=True)


def _messages() -> Any:
    """Return the class of the request. Fields and numbers: NVIDIA/NVSentinel, data-models/protobufs/health_event.proto.

    What is not sent (entities, metadata, overrides) is left out. Enums are numbers here, which are the same bytes.
    """
    file = descriptor_pb2.FileDescriptorProto(name="egmctl/health_event.proto", package="datamodels", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = descriptor_pb2.FieldDescriptorProto
    fields = {
        "HealthEvent": {
            "version": (1, kind.TYPE_UINT32),
            "agent": (2, kind.TYPE_STRING),
            "componentClass": (3, kind.TYPE_STRING),
            "checkName": (4, kind.TYPE_STRING),
            "isFatal": (5, kind.TYPE_BOOL),
            "isHealthy": (6, kind.TYPE_BOOL),
            "message": (7, kind.TYPE_STRING),
            "recommendedAction": (8, kind.TYPE_INT32),
            "errorCode": (9, kind.TYPE_STRING),
            "generatedTimestamp": (12, ".google.protobuf.Timestamp"),
            "nodeName": (13, kind.TYPE_STRING),
            "processingStrategy": (16, kind.TYPE_INT32),
        },
        "HealthEvents": {"version": (1, kind.TYPE_UINT32), "events": (2, ".datamodels.HealthEvent")},
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for member, (number, type_) in members.items():
            label = kind.LABEL_REPEATED if member in ("errorCode", "events") else kind.LABEL_OPTIONAL
            of = {"type_name": type_, "type": kind.TYPE_MESSAGE} if isinstance(type_, str) else {"type": type_}
            message.field.add(name=member, number=number, label=label, **of)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("datamodels.HealthEvents"))


HealthEvents = _messages()

if __name__ == "__main__":
    sys.exit(main())
