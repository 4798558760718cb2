"""Malformed requests for every operation of the API, made from its description.

Pure: a seed and the description give the same requests. A request is bytes for the wire, so that it may be what no
library would send.
"""

from __future__ import annotations

import json
import random
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Marks places where text that is no JSON takes the place of a JSON string.
RAW = "\ue000"

# Values for any field: wrong types, ends of ranges, what parsers stumble over. Texts that begin with RAW go in as they are.
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    1.5,
    RAW + "1e999",
    RAW + "-1e999",
    RAW + "NaN",
    RAW + "1" * 5000,
    RAW + "0x10",
    RAW + "-",
    RAW + "[" * 3000,
    RAW + "[" * 120 + "]" * 120,
    RAW + '{"a":' * 120 + "1" + "}" * 120,
    RAW + '"\\ud800"',
    RAW + '"\\u0000"',
    RAW + '{"a":1,"a":2}',
    "",
    "text",
    "\x00",
    "../../etc/passwd",
    "%2e%2e%2f",
    "' OR 1=1 --",
    "\u202e\U0001f4a3\ufffe",
    "9" * 400,
    "x" * 100_000,
    "-1",
    "1e999",
    "Infinity",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:60Z",
    "STATE_SOMEWHERE",
    [],
    [None],
    [[]],
    [{}],
    [1, "a", None, {}],
    [0] * 5000,
    {},
    {"": ""},
    {"a": {"a": {"a": None}}},
    {"\x00": 1},
)

# Path and query values, before they are percent-encoded.
TEXTS: tuple[str, ...] = (
    "",
    "-1",
    "0",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "9" * 500,
    "1.5",
    "1e3",
    "1e999",
    "NaN",
    "0x10",
    " 1",
    "1 ",
    "+1",
    "\u0661",
    "text",
    "true",
    "null",
    "[]",
    "{}",
    '{"a":',
    "..",
    ".",
    "../../../etc/passwd",
    "a/b",
    "..\\..\\x",
    "\x00",
    "a\x00b",
    "\r\nX: y",
    "'; DROP TABLE users; --",
    '" OR ""="',
    "%",
    "%%%",
    "%00",
    "*",
    "(((((",
    "(a+)+$",
    "x" * 2000,
    "\U0001f4a3",
    "ÿ",
    "00000000-0000-0000-0000-000000000000",
    "1.none.1",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:60Z",
)

# Already percent-encoded: what is none, and what decodes to no text.
ENCODED = ("%", "%zz", "%ff%fe", "%00", "%2e%2e%2f", "%252e%252e", "%c0%af", "%ed%a0%80", "a%0d%0aX:%20y", "+", "%F0%9F")


@dataclass(frozen=True)
class Operation:
    """An operation as the description has it."""

    name: str
    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    body: dict[str, Any] | None


@dataclass(frozen=True)
class Sent:
    """A request for the wire."""

    operation: str
    # What is wrong with it, as the reports of a test show it.
    how: str
    data: bytes
    # Whether an answer is owed: not if the bytes are not HTTP.
    answered: bool = True
    # Whether the sender ends its side after these bytes.
    ends: bool = False


def operations(description: dict[str, Any]) -> list[Operation]:
    """All operations of a description."""
    found = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            content = (operation.get("requestBody") or {}).get("content") or {}
            schema = next((kind["schema"] for kind in content.values()), None)
            parameters = tuple(operation.get("parameters", ()))
            found.append(Operation(operation["operationId"], method.upper(), path, parameters, schema))
    return found


class Generator:
    """Makes requests. `ids` gives values for path parameters that lead to something that exists."""

    def __init__(self, description: dict[str, Any], seed: int, ids: dict[str, str], host: str) -> None:
        self.schemas = description["components"]["schemas"]
        self.seed = seed
        self.ids = ids
        self.host = host

    def requests(self, operation: Operation, token: str, count: int) -> list[Sent]:
        """At least `count` malformed requests for one operation."""
        # One stream for each operation: a new operation does not change the requests of the others.
        chance = random.Random(f"{self.seed} {operation.name}")
        sent = [
            *self._addresses(operation, token, chance),
            *self._tokens(operation),
            *self._protocol(operation, token, chance),
        ]
        if operation.body is not None:
            sent += self._bodies(operation, token, chance)
        else:
            sent += self._queries(operation, token, chance)
        makers = [self._field if operation.body is not None else self._query, self._address]
        while len(sent) < count:
            sent.append(chance.choice(makers)(operation, token, chance))
        return sent

    # --- parts of a request ----------------------------------------------------------------------------------------

    def path(self, operation: Operation, over: dict[str, str] | None = None) -> str:
        """The operation's address with its parameters; those of `over` are encoded already."""
        path = operation.path
        for parameter in operation.parameters:
            name = parameter["name"]
            if parameter["in"] == "path":
                value = urllib.parse.quote(self.known(operation, name), safe="")
                path = path.replace("{" + name + "}", (over or {}).get(name, value))
        return path

    def known(self, operation: Operation, name: str) -> str:
        """A parameter that leads to something."""
        if name == "id":
            name = operation.path.split("/")[3].rstrip("s") + "Id"
        return self.ids[name]

    def send(
        self,
        operation: Operation,
        how: str,
        target: str,
        body: bytes | None,
        token: str,
        headers: tuple[tuple[str, bytes], ...] = (),
        **more: Any,
    ) -> Sent:
        lines = [f"{operation.method} {target} HTTP/1.1".encode("latin-1", "replace"), f"Host: {self.host}".encode()]
        given = {name.lower() for name, _ in headers}
        if token and "authorization" not in given:
            lines.append(b"Authorization: Bearer " + token.encode())
        if body is not None and not given & {"content-length", "transfer-encoding"}:
            lines.append(b"Content-Length: " + str(len(body)).encode())
        lines += [name.encode() + b": " + value for name, value in headers]
        data = b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
        return Sent(operation.name, how, data, **more)

    # --- addresses, tokens, protocol -------------------------------------------------------------------------------

    def _address(self, operation: Operation, token: str, chance: random.Random) -> Sent:
        names = [p["name"] for p in operation.parameters if p["in"] == "path"]
        if not names:
            return self._query(operation, token, chance)
        name = chance.choice(names)
        text = chance.choice(TEXTS)
        target = self.path(operation, {name: urllib.parse.quote(text, safe="", errors="replace")})
        body = b"{}" if operation.body is not None else None
        return self.send(operation, f"{name} = {text[:40]!r}", target, body, token)

    def _addresses(self, operation: Operation, token: str, chance: random.Random) -> Iterator[Sent]:
        body = b"{}" if operation.body is not None else None
        for name in (p["name"] for p in operation.parameters if p["in"] == "path"):
            for value in (*ENCODED, *(urllib.parse.quote(t, safe="", errors="replace") for t in chance.sample(TEXTS, 8))):
                target = self.path(operation, {name: value})
                yield self.send(operation, f"{name} = {value[:40]}", target, body, token)
        wrong = operation.path.replace("{", "%7B").replace("}", "%7D")
        yield self.send(operation, "parameters left out", wrong, body, token)
        yield self.send(operation, "a long address", f"{wrong}?{'a' * 30_000}", body, token)
        yield self.send(operation, "a query of ampersands", f"{wrong}?{'&' * 20_000}", body, token)

    def _query(self, operation: Operation, token: str, chance: random.Random) -> Sent:
        # A stream that is followed is no malformed request, and answers for ever.
        names = [p["name"] for p in operation.parameters if p["in"] == "query" and p["name"] != "follow"]
        names = names or ["pretty", "limit"]
        pairs = [(chance.choice(names), chance.choice(TEXTS)) for _ in range(chance.randint(1, 3))]
        query = "&".join(f"{n}={urllib.parse.quote(v, safe='', errors='replace')}" for n, v in pairs)
        body = b"{}" if operation.body is not None else None
        return self.send(operation, f"query {query[:60]}", f"{self.path(operation)}?{query}", body, token)

    def _queries(self, operation: Operation, token: str, chance: random.Random) -> Iterator[Sent]:
        if operation.method != "GET":
            # Without a body such a request is a good one.
            return
        path = self.path(operation)
        for parameter in operation.parameters:
            name = parameter["name"]
            if parameter["in"] != "query" or name == "follow":
                continue
            for value in chance.sample(ENCODED, 3):
                yield self.send(operation, f"{name}={value}", f"{path}?{name}={value}", None, token)
            for text in chance.sample(TEXTS, 4):
                quoted = urllib.parse.quote(text, safe="", errors="replace")
                yield self.send(operation, f"{name}={text[:40]!r}", f"{path}?{name}={quoted}", None, token)
            yield self.send(operation, f"{name}, 500 times", path + "?" + f"{name}=1&" * 500, None, token)
        yield self.send(operation, "a body that no handler reads", path, b"\xff" * 1000, token)

    def _tokens(self, operation: Operation) -> Iterator[Sent]:
        path, body = self.path(operation), b"{}" if operation.body is not None else None
        bad = "\u00e9".encode()
        for how, headers in (
            ("no token", ()),
            ("an empty token", (("Authorization", b"Bearer "),)),
            ("a wrong token", (("Authorization", b"Bearer " + b"A" * 43),)),
            ("a long token", (("Authorization", b"Bearer " + b"A" * 20_000),)),
            ("a token that is no text", (("Authorization", b"Bearer \xff\xfe" + bad),)),
            ("another scheme", (("Authorization", b"Basic YTpi"),)),
            ("two tokens", (("Authorization", b"Bearer a"), ("Authorization", b"Bearer b"))),
            ("a wrong cookie", (("Cookie", b"auth=; auth=\xff; =;;;"),)),
            ("a wrong task token", (("Grpc-Metadata-x-allocation-token", b"Bearer " + b"\xff" * 50),)),
        ):
            yield self.send(operation, how, path, body, "", headers)

    def _protocol(self, operation: Operation, token: str, chance: random.Random) -> Iterator[Sent]:
        """A few of the ways not to speak HTTP; another choice for each operation."""
        # An address that is nowhere: what is wrong here is above any operation.
        path = "/api/v1/nowhere"

        def one(how: str, headers: tuple[tuple[str, bytes], ...], body: bytes = b"") -> Sent:
            return self.send(operation, how, path, body, token, headers, answered=False, ends=True)

        length, chunked = "Content-Length", (("Transfer-Encoding", b"chunked"),)
        choices = [
            one("a negative length", ((length, b"-1"),), b"{}"),
            one("a length that is no number", ((length, b"many"),), b"{}"),
            one("an enormous length", ((length, b"9" * 40),), b"{}"),
            one("two lengths", ((length, b"2"), (length, b"3")), b"{}x"),
            one("a length and chunks", ((length, b"2"), *chunked), b"0\r\n\r\n"),
            one("chunks that are none", chunked, b"zz\r\n{}\r\n0\r\n\r\n"),
            one("an enormous chunk", chunked, b"f" * 30 + b"\r\n{}"),
            one("a chunk without its end", chunked, b"5\r\n{}"),
            one("an unknown coding", (("Transfer-Encoding", b"gzip, chunked, x"),), b"0\r\n\r\n"),
            one("300 headers", tuple((f"X-{n}", b"y") for n in range(300))),
            one("a header of 200 kB", (("X-Long", b"y" * 200_000),)),
            one("a header with NUL", (("X-Nul", b"a\0b"),)),
            one("a folded header", (("X-Fold", b"a\r\n b"),)),
            one("an expectation", (("Expect", b"the-impossible"), (length, b"2")), b"{}"),
            one("an upgrade to nothing", (("Connection", b"Upgrade"), ("Upgrade", b"nothing"))),
            Sent(operation.name, "no method", b"\r\n\r\n\r\n", answered=False, ends=True),
            Sent(operation.name, "no version", b"GET /\r\n\r\n", answered=False, ends=True),
            Sent(operation.name, "another version", b"GET / HTTP/9.9\r\n\r\n", answered=False, ends=True),
            Sent(operation.name, "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", answered=False, ends=True),
            Sent(operation.name, "TLS", b"\x16\x03\x01\x02\x00\x01\x00" + bytes(200), answered=False, ends=True),
            Sent(operation.name, "noise", chance.randbytes(500), answered=False, ends=True),
        ]
        yield from chance.sample(choices, 6)

    # --- bodies ----------------------------------------------------------------------------------------------------

    def _bodies(self, operation: Operation, token: str, chance: random.Random) -> Iterator[Sent]:
        path = self.path(operation)
        good = self.encode(self.example(operation, operation.body, chance))

        def one(how: str, body: bytes, *headers: tuple[str, bytes], **more: Any) -> Sent:
            return self.send(operation, how, path, body, token, headers, **more)

        yield one("no JSON", b"hello")
        yield one("cut off", good[: len(good) // 2] if len(good) > 2 else b"{")
        yield one("only an opening", b"{")
        yield one("a list", b"[1,2]")
        yield one("a text", b'"text"')
        yield one("a number", b"1e999")
        yield one("no UTF-8", b'{"a":"\xff\xfe"}')
        yield one("UTF-16", good.decode("utf-8", "replace").encode("utf-16"))
        yield one("NUL bytes", b"\0" * 1000)
        yield one("deep lists", b"[" * 100_000)
        yield one("deep maps", b'{"a":' * 100_000)
        yield one("a million spaces", b" " * 1_000_000)
        yield one("a million commas", b"," * 1_000_000)
        yield one("twice the same key", b'{"a":1,"a":2,' + good[1:] if good[:1] == b"{" else b'{"a":1,"a":2')
        yield one("a key of 1 MB", b'{"' + b"k" * 1_000_000 + b'":1}x')
        yield one("100,000 unknown keys", b"{" + b",".join(b'"k%d":[]' % n for n in range(100_000)))
        yield one("declared as gzip", b"\x1f\x8b" + chance.randbytes(200), ("Content-Encoding", b"gzip"))
        yield one("longer than it is", good, ("Content-Length", b"%d" % (len(good) + 10)), ends=True)
        yield one("shorter than it is", b"[1,2]", ("Content-Length", b"4"), answered=True)
        yield one("larger than allowed", b" " * (9 << 20))
        for _ in range(20):
            yield self._field(operation, token, chance)

    def _field(self, operation: Operation, token: str, chance: random.Random) -> Sent:
        """A good body with one or two fields spoiled."""
        tree = self.example(operation, operation.body, chance)
        how = []
        for _ in range(chance.randint(1, 2)):
            place = chance.choice([[], *places(tree)])
            value = chance.choice(VALUES)
            tree = put(tree, place, value)
            how.append(f"{'.'.join(map(str, place)) or 'all'} = {str(value)[:40]!r}")
        return self.send(operation, ", ".join(how), self.path(operation), self.encode(tree), token)

    def example(self, operation: Operation, schema: Any, chance: random.Random, name: str = "", depth: int = 0) -> Any:
        """A value that the schema describes, with ids that exist where a field is named for one."""
        if name in self.ids:
            known = self.ids[name]
            return int(known) if schema.get("type") == "integer" else known
        for choice in ("oneOf", "anyOf", "allOf"):
            if choice in schema:
                return self.example(operation, schema[choice][0], chance, name, depth)
        if "$ref" in schema:
            return self.example(operation, self.schemas[schema["$ref"].rsplit("/", 1)[1]], chance, name, depth)
        if "enum" in schema:
            return chance.choice(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next(k for k in kind if k != "null")
        if kind == "object" or "properties" in schema:
            if depth > 6:
                return {}
            members = schema.get("properties", {})
            return {key: self.example(operation, value, chance, key, depth + 1) for key, value in members.items()}
        if kind == "array":
            return [] if depth > 6 else [self.example(operation, schema.get("items", {}), chance, name.removesuffix("s"), depth + 1)]
        return {"integer": 1, "number": 1.0, "boolean": False, "string": "1"}.get(str(kind), "1")

    @staticmethod
    def encode(tree: Any) -> bytes:
        """JSON, with what RAW marks as it is."""
        pieces: list[str] = []

        def write(value: Any) -> None:
            if isinstance(value, str) and value.startswith(RAW):
                pieces.append(value[1:])
            elif isinstance(value, dict):
                pieces.append("{")
                for index, (key, member) in enumerate(value.items()):
                    pieces.append(("," if index else "") + json.dumps(key) + ":")
                    write(member)
                pieces.append("}")
            elif isinstance(value, list):
                pieces.append("[")
                for index, item in enumerate(value):
                    pieces.append("," if index else "")
                    write(item)
                pieces.append("]")
            else:
                pieces.append(json.dumps(value))

        write(tree)
        return "".join(pieces).encode("utf-8", "surrogatepass")


def places(tree: Any) -> list[list[Any]]:
    """The paths of all values below the top."""
    found: list[list[Any]] = []
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in members:
        found += [[key], *([key, *rest] for rest in places(value))]
    return found


def put(tree: Any, place: list[Any], value: Any) -> Any:
    """The tree with another value at a place."""
    if not place:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree) if isinstance(tree, list) else tree
    try:
        copy[place[0]] = put(copy[place[0]], place[1:], value)
    except (KeyError, IndexError, TypeError):
        # The other spoiled field was above this one.
        return tree
    return copy
