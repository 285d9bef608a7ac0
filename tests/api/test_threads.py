"""The library in programs with threads: an exporter that answers by a pool, and a server in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import pytest

import egmctl
from tests.fake.plugin import MakeFakeNode
from tests.launch.start import children

SECTIONS = ("host", "gpus", "driver")


@pytest.fixture
def node(fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process, and the children of the library, see a fake node."""
    for name, value in fake_node("hgx-h200x4").environment().items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


class Exporter(BaseHTTPRequestHandler):
    """Answers each request with a fresh look at the node."""

    def do_GET(self) -> None:
        """Send the number of GPUs."""
        machine = egmctl.read_machine(sections=SECTIONS, cuda=False)
        text = f"gpus {len(machine.gpus or ())} {threading.current_thread() is threading.main_thread()}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Yield the address of a running exporter."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("node")
def test_an_exporter_answers_each_request_in_a_thread_of_its_own() -> None:
    before = children()
    with serving() as address, ThreadPoolExecutor(4) as clients:

        def asked(_: int) -> bytes:
            with urlopen(address, timeout=120) as response:  # noqa: S310 - the address is ours
                content: bytes = response.read()
                return content

        assert list(clients.map(asked, range(8))) == [b"gpus 4 False\n"] * 8
    assert children() == before


@pytest.mark.usefixtures("node")
def test_a_server_in_asyncio_measures_beside_other_requests() -> None:
    async def measured() -> list[str]:
        bench = egmctl.Bench(cases=["device_to_device_memcpy_write_ce"], gpus="0,1", size="4M", samples=1)
        machine = await asyncio.to_thread(egmctl.read_machine, sections=bench.sections)
        plan = bench.plan(machine)
        report = await asyncio.to_thread(bench.run, plan, machine)
        return [measurement.status.value for measurement in report.measurements]

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        diagnosis = await asyncio.to_thread(egmctl.Doctor().diagnose, egmctl.read_machine("hgx-h200x4"))
        writer.write(json.dumps({"exit_code": int(diagnosis.exit_code), "run": await measured()}).encode())
        writer.close()

    async def asked(port: int) -> dict[str, object]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"how is the node?\n")
        answer: dict[str, object] = json.loads(await reader.read())
        writer.close()
        await writer.wait_closed()
        return answer

    async def main() -> list[dict[str, object]]:
        server = await asyncio.start_server(served, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return list(await asyncio.gather(asked(port), asked(port)))

    expected_code = int(egmctl.Doctor().diagnose(egmctl.read_machine("hgx-h200x4")).exit_code)
    assert asyncio.run(main()) == [{"exit_code": expected_code, "run": ["ok", "ok"]}] * 2


@pytest.mark.usefixtures("node")
def test_what_fails_in_a_thread_is_an_error_of_egmctl_there() -> None:
    async def main() -> None:
        await asyncio.to_thread(egmctl.read_machine, sections=("host",), pid=1 << 22)

    with pytest.raises(egmctl.EgmctlError, match="there is no process"):
        asyncio.run(main())
