"""What the children of these tests run. Everything here happens in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

from egmctl.driver import breadcrumb
from egmctl.errors import DriverCallError, NothingToDo
from egmctl.launch import Channel, ChannelClosed


def echo(_parent: Channel, arguments: dict[str, Any]) -> Any:
    return arguments


def answer_and_hang(parent: Channel, arguments: dict[str, Any]) -> Any:
    parent.answer(arguments)
    time.sleep(600)


def count(parent: Channel, arguments: dict[str, Any]) -> int:
    for number in range(arguments["to"]):
        parent.send({"number": number})
    return int(arguments["to"])


def converse(parent: Channel, _arguments: dict[str, Any]) -> str:
    """Double each number that comes, until the parent says stop."""
    while True:
        message, _ = parent.receive(timeout_s=60)
        if "stop" in message:
            return "stopped"
        parent.send({"doubled": 2 * message["number"]})


def swap_files(parent: Channel, _arguments: dict[str, Any]) -> str:
    """Read the first of the files that come, and send back a pipe that holds a greeting."""
    _, fds = parent.receive(timeout_s=60)
    text = os.read(fds[0], 100).decode()
    reading, writing = os.pipe()
    os.write(writing, b"from the child")
    os.close(writing)
    parent.send({"files": 2}, fds=[reading, reading])
    return text


def print_noise(_parent: Channel, _arguments: dict[str, Any]) -> str:
    print("noise from Python")  # noqa: T201
    os.write(1, b"noise from a library\n")
    os.write(2, b"a warning from a library\n")
    return sys.stdin.read()


def facts(_parent: Channel, _arguments: dict[str, Any]) -> dict[str, Any]:
    """What a child sees of itself."""
    return {
        "environment": dict(os.environ),
        "modules": sorted(sys.modules),
        "path": sys.path,
        "package": sys.modules["egmctl"].__file__,
        "group": os.getpgid(0),
        "pid": os.getpid(),
        "descriptors": os.listdir("/proc/self/fd"),
        "descriptors of a child of its own": subprocess.check_output(
            ["ls", "/proc/self/fd"], close_fds=False, text=True
        ).split(),
    }


def raise_value_error(_parent: Channel, _arguments: dict[str, Any]) -> None:
    raise ValueError("seven is not even")


def raise_driver_error(_parent: Channel, _arguments: dict[str, Any]) -> None:
    raise DriverCallError("cuMemCreate", 800, "CUDA_ERROR_NOT_PERMITTED")


def raise_nothing_to_do(_parent: Channel, _arguments: dict[str, Any]) -> None:
    raise NothingToDo("there is no driver here")


def return_a_set(_parent: Channel, _arguments: dict[str, Any]) -> set[int]:
    return {1, 2}


def return_text(_parent: Channel, arguments: dict[str, Any]) -> str:
    return "x" * int(arguments["size"])


def exit_with(_parent: Channel, arguments: dict[str, Any]) -> None:
    os._exit(arguments["code"])


def segfault(_parent: Channel, _arguments: dict[str, Any]) -> None:
    breadcrumb.enter("cuMemMap")
    ctypes.string_at(0)


def kill_itself(_parent: Channel, arguments: dict[str, Any]) -> None:
    os.kill(os.getpid(), arguments["signal"])


def hang(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Hang in a driver call, deaf to everything that can be ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    breadcrumb.enter("cuCtxCreate")
    parent.send({"hanging": True})
    while True:
        time.sleep(60)


def hang_in_two_threads(parent: Channel, _arguments: dict[str, Any]) -> None:
    def call(name: str, entered: threading.Event) -> None:
        breadcrumb.enter("cuInit")
        breadcrumb.leave()
        breadcrumb.enter(name)
        entered.set()
        time.sleep(60)

    for name in ("cuMemCreate", "cuDevicePrimaryCtxRetain"):
        entered = threading.Event()
        threading.Thread(target=call, args=(name, entered), daemon=True).start()
        entered.wait()
    breadcrumb.enter("cuInit")
    breadcrumb.leave()
    parent.send({"hanging": True})
    time.sleep(60)


def stop_itself(_parent: Channel, _arguments: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def flood(parent: Channel, _arguments: dict[str, Any]) -> None:
    while True:
        parent.send({"never": "ending"})


def wait_for_the_parent_to_close(parent: Channel, arguments: dict[str, Any]) -> None:
    parent.send({"waiting": True})
    try:
        parent.receive()
    except ChannelClosed:
        with open(arguments["path"], "w", encoding="ascii") as file:
            file.write("saw the end")
        raise


def start_a_grandchild(parent: Channel, _arguments: dict[str, Any]) -> None:
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    parent.send({"pid": grandchild.pid})
    time.sleep(60)


def crash_beside_a_fork(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Die while a forked process, as a library may leave one, still holds the channel."""
    if os.fork() == 0:
        time.sleep(60)
    parent.send({"forked": True})
    os._exit(5)


def send_garbage(parent: Channel, arguments: dict[str, Any]) -> None:
    parent._socket.sendall(bytes.fromhex(arguments["hex"]))
    if arguments["then"] == "exit":
        os._exit(0)
    time.sleep(60)


def end_with_files(parent: Channel, arguments: dict[str, Any]) -> None:
    parent.send_frame(arguments["kind"].encode(), {"kind": "E", "message": "", "own": None}, fds=[0, 1, 2])
    os._exit(0)


def close_the_channel(parent: Channel, _arguments: dict[str, Any]) -> None:
    parent.close()
    time.sleep(60)


def print_without_end(_parent: Channel, arguments: dict[str, Any]) -> None:
    """Print so many bytes, never far ahead of the parent, which is to give back what it has not to keep."""
    while os.fstat(1).st_size < arguments["bytes"]:
        print("x" * 65536, flush=True)  # noqa: T201
        while os.fstat(1).st_blocks * 512 > arguments["ahead"]:
            time.sleep(0.01)
    print("the last words", flush=True)  # noqa: T201
    os._exit(1)


def time_breadcrumbs(_parent: Channel, arguments: dict[str, Any]) -> float:
    """Return the seconds of CPU that one enter and one leave take together, at best."""
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        for _ in range(arguments["times"]):
            breadcrumb.enter("cuMemCreate")
            breadcrumb.leave()
        best = min(best, (time.thread_time() - start) / arguments["times"])
    return best


def send_from_threads(parent: Channel, arguments: dict[str, Any]) -> None:
    def send(thread: int) -> None:
        for number in range(arguments["each"]):
            parent.send({"thread": thread, "number": number, "padding": "x" * arguments["padding"]})

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def raise_at_exit(_parent: Channel, _arguments: dict[str, Any]) -> str:
    """Leave behind what would make a usual end of the interpreter hang."""
    import atexit

    atexit.register(time.sleep, 60)
    return "done"


with contextlib.suppress(KeyError):
    os.environ["EGMCTL_TEST_HOOK_RAN"] += ", then the target was imported"


def sealed_facts(_parent: Channel, _arguments: dict[str, Any]) -> dict[str, Any]:
    """What a sealed child can still load: these modules and codecs exist, and no other child's target names them."""
    answers = {}
    for what, attempt in (("import", lambda: importlib.import_module("this")), ("codec", lambda: b"x".decode("cp037"))):
        try:
            attempt()
            answers[what] = "ok"
        except (ImportError, LookupError) as error:
            answers[what] = type(error).__name__
    return {"mark": os.environ["EGMCTL_TEST_HOOK_RAN"], "finders": [*map(str, sys.meta_path), *sys.path], **answers}


def raise_past_the_launcher(_parent: Channel, _arguments: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def warn(_parent: Channel, _arguments: dict[str, Any]) -> str:
    warnings.warn("careful", UserWarning, stacklevel=1)
    return "warned"
