"""The transport: retries, trust, error texts."""

from __future__ import annotations

import json
import pathlib
import ssl
import threading
from typing import Any

import pytest
import trustme
import urllib3

from determined import errors
from determined._session import MasterSession, TrustSettings, _proxy_for, default_retry
from stub_master import Answer, StubMaster

QUICK = urllib3.Retry(
    total=50, backoff_factor=0.01, backoff_max=0.05, allowed_methods=None, status_forcelist=(502, 503, 504)
)


def session(master: StubMaster, **options: Any) -> MasterSession:
    return MasterSession(master.url, token="opaque", **{"retry": QUICK, **options})


def test_requests_carry_the_allocation_token_and_json(master: StubMaster) -> None:
    s = session(master)
    s.post("/api/v1/x", {"a": [1, None]})
    s.close()
    (request,) = master.requests
    assert request.headers["grpc-metadata-x-allocation-token"] == "Bearer opaque"
    assert "authorization" not in request.headers
    assert request.body == {"a": [1, None]}


def test_the_default_retry_outlasts_ten_minutes_and_tries_twenty_times() -> None:
    retry = default_retry({})
    retry.backoff_jitter = 0.0
    waited, tries = 0.0, 0
    error = urllib3.exceptions.ProtocolError("cut")
    while True:
        try:
            retry = retry.increment("POST", "/", error=error)
        except urllib3.exceptions.MaxRetryError:
            break
        tries += 1
        waited += retry.get_backoff_time()
    assert tries == 20
    assert 600 <= waited <= 1200


def test_a_connection_cut_after_the_commit_is_retried(master: StubMaster) -> None:
    master.cut_next("/api/v1/x", times=2)
    s = session(master)
    s.post("/api/v1/x", {"n": 1})
    s.close()
    assert [r.body for r in master.requests] == [{"n": 1}] * 3


def test_an_absent_master_is_waited_for(master: StubMaster) -> None:
    s = session(master)
    s.get("/api/v1/x")
    master.stop()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(s.post("/api/v1/x", {}).object()))
    thread.start()
    master.start()
    thread.join(30)
    s.close()
    assert answers == [{}]


def test_a_gateway_without_a_master_is_retried(master: StubMaster) -> None:
    replies = iter([Answer(503), Answer(502), Answer(200, {"ok": 1})])
    master.on("POST", "/api/v1/x", lambda _: next(replies))
    s = session(master)
    assert s.post("/api/v1/x", {}).object() == {"ok": 1}
    s.close()


def test_exhausted_retries_report_what_was_tried(master: StubMaster) -> None:
    master.stop()
    with pytest.raises(
        errors.MasterNotFoundException, match=r"POST http://127.0.0.1:.*/api/v1/x: the master did not"
    ):
        session(master, retry=urllib3.Retry(0)).post("/api/v1/x")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.APIException),
        (401, errors.UnauthenticatedException),
        (403, errors.ForbiddenException),
        (404, errors.NotFoundException),
        (500, errors.APIException),
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"message": "because"}, id="message"),
        pytest.param({"error": {"message": "because"}}, id="error.message"),
        pytest.param({"error": {"code": 3, "error": "because"}}, id="error.error"),
        pytest.param(b"because", id="text"),
    ],
)
def test_refusals_are_distinguished_and_quoted(
    master: StubMaster, status: int, kind: type[errors.APIException], body: Any
) -> None:
    master.on("GET", "/api/v1/x", Answer(status, body))
    s = session(master)
    with pytest.raises(errors.APIException, match=rf"status {status}: because") as caught:
        s.get("/api/v1/x")
    s.close()
    assert type(caught.value) is kind
    assert caught.value.status_code == status


def test_redirects_are_refused_and_not_followed(master: StubMaster) -> None:
    master.on("POST", "/api/v1/x", Answer(302, headers={"Location": "http://elsewhere/"}))
    s = session(master)
    with pytest.raises(errors.APIException, match="redirected to 'http://elsewhere/'"):
        s.post("/api/v1/x", {})
    s.close()
    assert len(master.requests) == 1


def test_an_answer_that_is_no_json_object_is_named(master: StubMaster) -> None:
    master.on("GET", "/api/v1/x", Answer(200, b"<html>"))
    s = session(master)
    with pytest.raises(errors.BadResponseException, match="not JSON"):
        s.get("/api/v1/x").object()
    s.close()


def test_retry_settings_come_from_the_environment() -> None:
    retry = default_retry({"DET_RETRY_CONFIG": json.dumps({"total": 3, "method_whitelist": False})})
    assert retry.total == 3
    assert not retry.allowed_methods


@pytest.mark.parametrize("config", ["3", "{", '{"no_such": 1}'])
def test_wrong_retry_settings_are_named(config: str) -> None:
    with pytest.raises(ValueError, match="DET_RETRY_CONFIG"):
        default_retry({"DET_RETRY_CONFIG": config})


@pytest.fixture
def tls_master(tmp_path: pathlib.Path) -> Any:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("determined-master").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with StubMaster(tls=context) as stub:
        yield stub, str(tmp_path / "ca.pem")


def test_tls_trusts_the_given_certificate_under_the_given_name(tls_master: Any) -> None:
    master, ca = tls_master
    trust = TrustSettings.resolve({"DET_MASTER_CERT_FILE": ca, "DET_MASTER_CERT_NAME": "determined-master"})
    s = session(master, trust=trust)
    assert s.get("/api/v1/x").object() == {}
    s.close()


@pytest.mark.parametrize("name", [None, "another-master"], ids=["address", "wrong name"])
def test_tls_refuses_another_name(tls_master: Any, name: str | None) -> None:
    master, ca = tls_master
    s = session(master, trust=TrustSettings(cert_file=ca, cert_name=name), retry=urllib3.Retry(5, other=0))
    with pytest.raises(errors.MasterNotTrusted, match="DET_MASTER_CERT_NAME"):
        s.get("/api/v1/x")
    s.close()
    assert master.requests == []


def test_tls_refuses_an_unknown_certificate(tls_master: Any) -> None:
    master, _ = tls_master
    s = session(master, trust=TrustSettings(cert_name="determined-master"), retry=urllib3.Retry(5, other=0))
    with pytest.raises(errors.MasterNotTrusted, match="DET_MASTER_CERT_FILE"):
        s.get("/api/v1/x")
    s.close()


def test_noverify_trusts_anything_and_warns(tls_master: Any) -> None:
    master, _ = tls_master
    s = session(master, trust=TrustSettings.resolve({"DET_MASTER_CERT_FILE": "NoVerify"}))
    with pytest.warns(urllib3.exceptions.InsecureRequestWarning):
        assert s.get("/api/v1/x").object() == {}
    s.close()


def test_a_missing_certificate_file_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    TrustSettings(cert_file="/nowhere/master.crt").pool_options()
    assert "/nowhere/master.crt does not exist" in caplog.text


def test_a_certificate_file_that_is_none_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    with pytest.raises(errors.MasterNotTrusted, match="must be a PEM file"):
        TrustSettings(cert_file=str(tmp_path / "c.pem")).pool_options()


@pytest.mark.parametrize(
    ("env", "proxy"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"HTTP_PROXY": "http://p:3128"}, "http://p:3128", id="set"),
        pytest.param({"http_proxy": "p:3128"}, "http://p:3128", id="without scheme"),
        pytest.param({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "example.org,master"}, None, id="excepted"),
        pytest.param({"HTTPS_PROXY": "http://p:3128"}, None, id="other scheme"),
    ],
)
def test_proxies_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], proxy: str | None
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert _proxy_for("http://master:8080") == proxy
