"""Services and their names on the real node of a testbed, which has no kube-proxy and no cluster DNS of its own.

Rules of iptables for the addresses of Services, and a name server at the node's address. Needs root, and a testbed that
was started with `--arg kubelet=--cluster-dns=10.244.0.1 --arg kubelet=--cluster-domain=cluster.local`.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Iterable
from types import TracebackType

from kubernetes import Kubernetes

NODE = "10.244.0.1"
PODS = "10.244.0.0/24"
BRIDGE = "k8stb0"
CHAIN = "DET-E2E-SERVICES"
DOMAIN = ".svc.cluster.local"
# Where packets meet the chain: from pods, and from the node itself.
JUMPS = (["PREROUTING", "-i", BRIDGE, "-j", CHAIN], ["OUTPUT", "-j", CHAIN])
# A pod that answers another one directly would answer from an address that was not asked.
BACK = ["POSTROUTING", "-s", PODS, "-d", PODS, "-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE"]


def iptables(*words: str, check: bool = True) -> None:
    subprocess.run(["iptables", "-w", "-t", "nat", *words], check=check, capture_output=True, text=True)


class Services:
    """Keeps rules and names as the Services of the cluster are, for as long as it is entered."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.names: dict[str, list[str]] = {}
        self.rules: list[str] = []
        self.stopping = threading.Event()
        self.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.threads = [threading.Thread(target=it, daemon=True) for it in (self._follow, self._answer)]

    def __enter__(self) -> Services:
        # Unless a bridge was given an address, its own changes with its ports, and pods lose the node for a moment.
        subprocess.run(["ip", "link", "set", "dev", BRIDGE, "address", "02:00:0a:f4:00:01"], check=True)
        self.server.bind((NODE, 53))
        self.server.settimeout(0.5)
        # A run that was killed left them.
        self._remove(check=False)
        iptables("-N", CHAIN)
        for jump in (*JUMPS, BACK):
            iptables("-A", *jump)
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        self.server.close()
        self._remove(check=True)

    @staticmethod
    def _remove(*, check: bool) -> None:
        for jump in (*JUMPS, BACK):
            iptables("-D", *jump, check=check)
        iptables("-F", CHAIN, check=check)
        iptables("-X", CHAIN, check=check)

    def _follow(self) -> None:
        while not self.stopping.wait(0.5):
            services = self.kubernetes.items("services", "--all-namespaces")
            slices = self.kubernetes.items("endpointslices", "--all-namespaces")
            rules, names = routed(services, slices)
            self.names = names
            if rules != self.rules:
                text = "\n".join(["*nat", f"-F {CHAIN}", *rules, "COMMIT", ""])
                subprocess.run(["iptables-restore", "-w", "--noflush"], input=text, text=True, check=True)
                self.rules = rules

    def _answer(self) -> None:
        while not self.stopping.is_set():
            try:
                query, client = self.server.recvfrom(512)
            except TimeoutError:
                continue
            self.server.sendto(answer(query, self.names), client)


def routed(services: Iterable[dict], slices: Iterable[dict]) -> tuple[list[str], dict[str, list[str]]]:
    """Rules of the chain, and addresses by name."""
    rules: list[str] = []
    names: dict[str, list[str]] = {}
    ready: dict[tuple[str, str], list[tuple[dict, dict]]] = {}
    for found in slices:
        metadata = found["metadata"]
        service = metadata.get("labels", {}).get("kubernetes.io/service-name", "")
        held = ready.setdefault((metadata["namespace"], service), [])
        held += [(found, end) for end in found.get("endpoints") or [] if (end.get("conditions") or {}).get("ready")]
    for service in services:
        metadata, spec = service["metadata"], service["spec"]
        name = f"{metadata['name']}.{metadata['namespace']}{DOMAIN}"
        ends = ready.get((metadata["namespace"], metadata["name"]), [])
        if spec.get("clusterIP", "None") == "None":
            names[name] = [address for _, end in ends for address in end["addresses"]]
            for _, end in ends:
                if end.get("hostname"):
                    names[f"{end['hostname']}.{name}"] = end["addresses"]
            continue
        names[name] = [spec["clusterIP"]]
        if name == f"kubernetes.default{DOMAIN}":
            # The testbed leads there by itself.
            continue
        for port in spec.get("ports", []):
            targets = {
                f"{end['addresses'][0]}:{it['port']}"
                for found, end in ends
                for it in found.get("ports") or []
                if it.get("name", "") == port.get("name", "")
            }
            # Without a pod that is ready the connection is refused, as kube-proxy does.
            target = min(targets, default=f"{NODE}:1")
            where = f"-d {spec['clusterIP']}/32 -p tcp --dport {port['port']}"
            rules.append(f"-A {CHAIN} {where} -j DNAT --to-destination {target}")
    return sorted(rules), names


def answer(query: bytes, names: dict[str, list[str]]) -> bytes:
    """The answer to a query for one name: its addresses (RFC 1035)."""
    identity, _, count = struct.unpack("!HHH", query[:6])
    labels, at = [], 12
    while count == 1 and at < len(query) and query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += 1 + query[at]
    question = query[12 : at + 5]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    found = names.get(".".join(labels).lower())
    addresses = found if found and kind == 1 else []
    # Authoritative, recursion available; 3 is "no such name".
    flags = 0x8580 | (0 if found is not None else 3)
    head = struct.pack("!HHHHHH", identity, flags, 1, len(addresses), 0, 0)
    records = [struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address) for address in addresses]
    return head + question + b"".join(records)
