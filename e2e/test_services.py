"""Programs of tasks reached through the master: requests, streams, WebSockets and raw bytes; who may connect, and what ends."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import flavoured
from harness import Agent, ApiError, Cluster
from processes import free_port
from waiting import wait_for

pytestmark = pytest.mark.core

HTTP, RAW, OPEN = 28101, 28102, 28103

PROGRAM = """
import http.server, json, os, socket, socketserver, threading, time, hashlib, base64

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(hashlib.sha256(body).hexdigest().encode())
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.socket()
        if self.path.endswith("/stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in range(3):
                self.wfile.write(b"7\\r\\nevent %d\\r\\n" % n); self.wfile.flush()
                go.wait(20) if n == 1 else None
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        if self.path.endswith("/go"):
            go.set()
        if self.path.endswith("/large"):
            return self.answer(b"x" * (64 << 20))
        self.answer(json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode())
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "auth=stolen")
        self.send_header("Set-Cookie", "gradio=everywhere; Path=/; Domain=localhost")
        self.end_headers()
        self.wfile.write(body)
    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.write(b"\\x81\\x05hello"); self.wfile.flush()
        self.rfile.read(6 + 2)
        self.wfile.write(b"\\x88\\x00"); self.wfile.flush()
        self.close_connection = True

go = threading.Event()
web = http.server.ThreadingHTTPServer(("127.0.0.1", HTTP_PORT), Handler)
threading.Thread(target=web.serve_forever, daemon=True).start()
open_web = http.server.ThreadingHTTPServer(("127.0.0.1", OPEN_PORT), Handler)
threading.Thread(target=open_web.serve_forever, daemon=True).start()
raw = socket.create_server(("127.0.0.1", RAW_PORT))
print("listening", flush=True)
while True:
    connection, _ = raw.accept()
    def echo(connection=connection):
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()
    threading.Thread(target=echo, daemon=True).start()
"""


def serve(cluster: Cluster, ports: tuple[int, int, int] = (HTTP, RAW, OPEN)) -> str:
    """A command with the program, which listens. Two that run at the same time need other ports: they are on one host."""
    http, raw, free = ports
    program = PROGRAM.replace("HTTP_PORT", str(http)).replace("RAW_PORT", str(raw)).replace("OPEN_PORT", str(free))
    config = {
        "entrypoint": ["python3", "-c", program],
        "resources": {"slots": 0},
        "environment": {
            "proxy_ports": [
                {"proxy_port": http, "default_service_id": True},
                {"proxy_port": raw, "proxy_tcp": True, "unauthenticated": True},
                {"proxy_port": free, "unauthenticated": True},
                {"proxy_port": port_of(cluster), "unauthenticated": True},
            ]
        },
    }
    made = cluster.api("POST", "/api/v1/commands", {"config": config})
    id = made["command"]["id"]
    wait_for("the program to listen", lambda: answers(cluster, id), within=30)
    return id


@pytest.fixture(scope="module")
def accepting() -> Iterator[tuple[Cluster, int]]:
    """A cluster whose agent accepts tunnels from its master at this port."""
    port = free_port()
    with flavoured("core", agents=[Agent(args=["--set", f"tunnel_port={port}"])]) as cluster:
        yield cluster, port


@pytest.fixture(scope="module", params=["opened by the agent", "opened by the master"])
def services(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    """A cluster with a command that serves, and a second ordinary account; for both ways in which tunnels are opened."""
    if request.param == "opened by the agent":
        up = request.getfixturevalue("up")
    else:
        up, _ = request.getfixturevalue("accepting")
    password = up.root / "password"
    password.write_text("Weaker-than-1-wants\n")
    admin = {"DET_USER": "admin", "DET_PASS": ""}
    up.run_det("user", "create", "mallory", "--password-file", password, env=admin)
    up.token("mallory", "Weaker-than-1-wants")
    id = serve(up)
    yield up, id
    up.api("POST", f"/api/v1/commands/{id}/kill")


def answers(cluster: Cluster, id: str) -> bool:
    try:
        cluster.raw("GET", f"/proxy/{id}/")
    except ApiError as error:
        assert error.status in (503,), error
        return False
    return True


def test_a_request_reaches_the_program_as_it_came(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    for name in (id, f"{id}:{HTTP}", f"{id}%3A{HTTP}"):
        path = f"/proxy/{name}/a%20b//c/?x=1&y=%2F"
        seen = json.loads(cluster.raw("GET", path, headers={"Cookie": "auth=mine; own=1", "X-Own": "2"}))
        assert seen["path"] == path
        headers = {name.lower(): value for name, value in seen["headers"].items()}
        assert headers["cookie"] == "own=1" and headers["x-own"] == "2"
        assert "authorization" not in headers
        assert headers["x-forwarded-for"] == "127.0.0.1" and headers["x-forwarded-proto"] == "http"
        assert headers["host"] == headers["x-forwarded-host"] == cluster.url.removeprefix("http://")


def test_large_bodies_pass_in_both_directions(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    body = os.urandom(1 << 20) * 40
    digest = cluster.raw("POST", f"/proxy/{id}/", body)
    assert digest.decode() == hashlib.sha256(body).hexdigest()
    assert len(cluster.raw("GET", f"/proxy/{id}/large")) == 64 << 20


def test_events_arrive_as_they_are_sent(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    request = urllib.request.Request(f"{cluster.url}/proxy/{id}/stream")
    request.add_header("Authorization", f"Bearer {cluster.token('determined')}")
    with urllib.request.urlopen(request, timeout=20) as stream:
        assert stream.read(14) == b"event 0event 1"
        # The program sends the last one only when it is asked to.
        cluster.raw("GET", f"/proxy/{id}/go")
        assert stream.read() == b"event 2"


def port_of(cluster: Cluster) -> int:
    return int(cluster.url.rsplit(":", 1)[1])


def upgraded(cluster: Cluster, path: str, *headers: str) -> tuple[socket.socket, bytes, bytes]:
    """A WebSocket by hand: the connection, the head of the answer, and what came behind it."""
    connection = socket.create_connection(("127.0.0.1", port_of(cluster)), timeout=20)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port_of(cluster)}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *headers,
    ]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(4096)
        assert piece, received
        received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    return connection, head, rest


def frame(data: bytes) -> bytes:
    """A masked binary frame."""
    mask = os.urandom(4)
    size = struct.pack("!BBH", 0x82, 0x80 | 126, len(data)) if len(data) > 125 else struct.pack("!BB", 0x82, 0x80 | len(data))
    return size + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


def exactly(connection: socket.socket, begun: bytes, size: int) -> bytes:
    while len(begun) < size:
        piece = connection.recv(65536)
        assert piece, begun
        begun += piece
    return begun[:size]


def test_a_websocket_of_a_program_passes(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    connection, head, rest = upgraded(cluster, f"/proxy/{id}/ws", f"Authorization: Bearer {cluster.token('determined')}")
    with connection:
        assert head.startswith(b"HTTP/1.1 101"), head
        assert exactly(connection, rest, 7) == b"\x81\x05hello"
        connection.sendall(frame(b"ab"))
        assert exactly(connection, b"", 2) == b"\x88\x00"


def test_raw_bytes_pass_over_a_websocket_without_a_token(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    connection, head, rest = upgraded(cluster, f"/proxy/{id}:{RAW}/")
    with connection:
        assert head.startswith(b"HTTP/1.1 101"), head
        connection.sendall(frame(b"ping"))
        assert exactly(connection, rest, 6) == b"\x82\x04ping"


def refused(cluster: Cluster, path: str, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        cluster.raw("GET", path, **options)
    return caught.value


def test_a_service_is_for_its_owner(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    assert refused(cluster, f"/proxy/{id}/", user=None).status == 401
    error = refused(cluster, f"/proxy/{id}/", user="mallory")
    assert error.status == 403 and "connect to service" in error.body, error
    page = urllib.request.Request(f"{cluster.url}/proxy/{id}/x?y=1", headers={"Accept": "text/html"})

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any) -> None:
            return None

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay()).open(page, timeout=20)
    with caught.value as answer:
        assert answer.code == 303
        assert answer.headers["Location"].startswith("/det/login?redirect=%2Fproxy%2F")


def policy(cluster: Cluster, path: str, **headers: str) -> str | None:
    request = urllib.request.Request(cluster.url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.headers["Content-Security-Policy"]


def test_pages_before_others_than_the_owner_have_no_origin(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    cookie = f"auth={cluster.token('determined')}"
    for path in (f"/proxy/{id}/", f"/proxy/{id}:{OPEN}/"):
        assert policy(cluster, path, Cookie=cookie) is None
    # An administrator, and a user without a session: scripts there must not act in their names.
    admin = f"auth={cluster.token('admin', '')}"
    for path, cookies in ((f"/proxy/{id}/", admin), (f"/proxy/{id}:{OPEN}/", admin), (f"/proxy/{id}:{OPEN}/", "")):
        found = policy(cluster, path, Cookie=cookies)
        assert found is not None and found.startswith("sandbox ") and "same-origin" not in found


def cookies_set(cluster: Cluster, path: str, sent: str) -> tuple[list[str], str | None]:
    """The cookies that an answer sets, and those that reached the service."""
    request = urllib.request.Request(cluster.url + path, headers={"Cookie": sent})
    with urllib.request.urlopen(request, timeout=20) as answer:
        headers = {name.lower(): value for name, value in json.loads(answer.read())["headers"].items()}
        return answer.headers.get_all("Set-Cookie") or [], headers.get("cookie")


def test_a_cookie_of_a_service_is_for_this_service_and_its_owner(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    owner = f"auth={cluster.token('determined')}; own=1"
    for name in (id, f"{id}:{OPEN}", f"{id}%3A{OPEN}"):
        assert cookies_set(cluster, f"/proxy/{name}/deep/er", owner) == ([f"gradio=everywhere; Path=/proxy/{name}/"], "own=1")
    admin = f"auth={cluster.token('admin', '')}; own=1"
    for sent in (admin, "own=1"):
        assert cookies_set(cluster, f"/proxy/{id}:{OPEN}/", sent) == ([], None)
    assert cookies_set(cluster, f"/proxy/{id}/", admin) == ([], None)


def test_a_port_that_is_another_programs_is_not_reached(services: tuple[Cluster, str]) -> None:
    # The master's own: through the agent it would take the request for one from its own machine.
    cluster, id = services
    error = refused(cluster, f"/proxy/{id}:{port_of(cluster)}/api/v1/master", user=None)
    assert error.status == 503 and "is not the task: another program has the port" in error.body, error


def test_what_is_no_service_is_refused_by_name(services: tuple[Cluster, str]) -> None:
    cluster, id = services
    for name in ("nothing", f"{id}:{HTTP + 7}", f"{id}:x", f"{id}:99999"):
        error = refused(cluster, f"/proxy/{name}/")
        assert error.status == 404 and "there is no service" in error.body, error
    error = refused(cluster, f"/proxy/{id}:{RAW}/")
    assert error.status == 400 and "over a WebSocket" in error.body, error


def connections_to(port: int) -> int:
    """How many established connections of loopback have this port at their far end."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2] == f"0100007F:{port:04X}" and row[3] == "01" for row in rows)


def test_the_master_connects_to_an_agent_that_accepts_tunnels(accepting: tuple[Cluster, int]) -> None:
    cluster, port = accepting
    id = serve(cluster, (HTTP + 20, RAW + 20, OPEN + 20))
    request = urllib.request.Request(f"{cluster.url}/proxy/{id}/stream")
    request.add_header("Authorization", f"Bearer {cluster.token('determined')}")
    with urllib.request.urlopen(request, timeout=20) as stream:
        assert stream.read(7) == b"event 0"
        assert connections_to(port) > 0
        cluster.raw("GET", f"/proxy/{id}/go")
        stream.read()
    error = refused(cluster, f"/proxy/{id}:{port_of(cluster)}/")
    assert error.status in (502, 503) and "another program has the port" in error.body, error
    cluster.api("POST", f"/api/v1/commands/{id}/kill")


def test_an_agent_opens_tunnels_for_its_master_alone(accepting: tuple[Cluster, int]) -> None:
    _, port = accepting
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE

    def answer(*headers: str) -> bytes:
        lines = ["GET /agents/tunnels/c/22 HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: det-tunnel", *headers, "", ""]
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            with anyone.wrap_socket(plain) as connection:
                connection.sendall("\r\n".join(lines).encode())
                received = b""
                while piece := connection.recv(4096):
                    received += piece
                return received

    for header in ("X-Nothing: 1", "Authorization: Bearer ", "Authorization: Bearer " + "0" * 64):
        seen = answer(header)
        assert seen.startswith(b"HTTP/1.1 401") and b"only the master" in seen, seen
    # What speaks no TLS gets an alert of TLS and no answer.
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(4096)


def test_an_agent_whose_port_is_not_reached_opens_the_tunnel_itself() -> None:
    args = ["--set", f"tunnel_port={free_port()}", "--set", "tunnel_host=nowhere.invalid"]
    with flavoured("core", agents=[Agent(args=args)]) as cluster:
        cluster.expect_alarm(r"cannot connect to the agent's tunnel_port at nowhere\.invalid")
        id = serve(cluster, (HTTP + 30, RAW + 30, OPEN + 30))
        assert len(cluster.raw("GET", f"/proxy/{id}/large")) == 64 << 20
        cluster.api("POST", f"/api/v1/commands/{id}/kill")


def test_a_service_goes_with_its_task(up: Cluster) -> None:
    port = HTTP + 5
    config = {
        "entrypoint": ["python3", "-m", "http.server", "--bind", "127.0.0.1", str(port)],
        "resources": {"slots": 0},
        "environment": {"proxy_ports": [{"proxy_port": port, "default_service_id": True}]},
    }
    id = up.api("POST", "/api/v1/commands", {"config": config})["command"]["id"]

    def listens() -> bool:
        # What it answers to the path does not matter: it does.
        return refused(up, f"/proxy/{id}/").status == 404

    wait_for("the program to listen", listens, within=30)
    up.api("POST", f"/api/v1/commands/{id}/kill")

    def gone() -> bool:
        return "its task has ended" in refused(up, f"/proxy/{id}/").body

    wait_for("the service to go", gone, within=30)


class Browser:
    """Keeps cookies by host and path, and shows each redirect."""

    def __init__(self, cluster: Cluster) -> None:
        self.port = port_of(cluster)
        self.cookies: dict[tuple[str, str, str], str] = {}

    def open(self, host: str, path: str) -> tuple[int, str, bytes]:
        """Status, address that it leads to, body."""
        below = path.partition("?")[0]
        sent = [f"{name}={value}" for (of, root, name), value in self.cookies.items() if of == host and below.startswith(root)]
        headers = {"Host": f"{host}:{self.port}", "Accept": "text/html", **({"Cookie": "; ".join(sent)} if sent else {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("Set-Cookie") or []:
                pair, *attributes = cookie.split("; ")
                name, _, value = pair.partition("=")
                root = next((a.removeprefix("Path=") for a in attributes if a.startswith("Path=")), "/")
                self.cookies[host, root, name] = value
            return answer.status, answer.headers.get("Location", ""), answer.read()

    def follow(self, host: str, path: str) -> tuple[str, str, int, bytes]:
        """Goes where it is led: host, path, status and body at the end."""
        for _ in range(6):
            status, to, body = self.open(host, path)
            if status != 303:
                return host, path, status, body
            if to.startswith("//"):
                authority, _, rest = to.removeprefix("//").partition("/")
                assert authority.endswith(f":{self.port}"), to
                host, path = authority.partition(":")[0], f"/{rest}"
            else:
                path = to
        raise AssertionError(f"led in a circle at {host}{path}")


def test_browsers_get_services_at_a_host_of_their_own() -> None:
    with Cluster(master_config={"security": {"services_host": "services.localhost"}}) as cluster:
        cluster.expect_alarm("serves without TLS")
        ports = (HTTP + 10, RAW + 10, OPEN + 10)
        id = serve(cluster, ports)
        browser = Browser(cluster)
        browser.cookies["localhost", "/", "auth"] = cluster.token("determined")
        host, path, status, body = browser.follow("localhost", f"/proxy/{id}/page?x=1")
        assert (host, path, status) == ("services.localhost", f"/proxy/{id}/page?x=1", 200)
        seen = json.loads(body)
        assert seen["path"] == path and "cookie" not in {name.lower() for name in seen["headers"]}
        assert browser.open("services.localhost", "/api/v1/me")[0] == 421
        assert browser.open("services.localhost", f"/proxy/{id}/more")[0] == 200
        of_service = {root for (_, root, name) in browser.cookies if name == "gradio"}
        assert of_service == {f"/proxy/{id}/"}
        # Programs with a token go on as before, and so do those that bring nothing to a port that asks for nothing.
        assert json.loads(cluster.raw("GET", f"/proxy/{id}/"))["path"] == f"/proxy/{id}/"
        connection, head, rest = upgraded(cluster, f"/proxy/{id}:{ports[1]}/")
        with connection:
            assert head.startswith(b"HTTP/1.1 101"), head
            connection.sendall(frame(b"ping"))
            assert exactly(connection, rest, 6) == b"\x82\x04ping"
        # The end of the session is the end of what it has open, and of its cookies there.
        token = cluster.token("determined")
        connection, head, rest = upgraded(cluster, f"/proxy/{id}/ws", f"Authorization: Bearer {token}")
        with connection:
            assert exactly(connection, rest, 7) == b"\x81\x05hello"
            cluster.raw("POST", "/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
            assert connection.recv(16) == b"", "it was cut"
        assert browser.open("services.localhost", f"/proxy/{id}/more")[0] == 401
