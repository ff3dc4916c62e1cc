"""The live page: what the server sends, to whom, and that it follows the run."""

import hashlib
import http.client
import json
import re
import signal
import threading
from types import SimpleNamespace

import pytest

from fedmt.reports.watch import HOST, Follower, Server
from fedmt.runs.folder import RunFolder


def get(server, path, **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read()


@pytest.fixture
def served(make_run, tmp_path):
    folder = make_run(tmp_path / "run", finished=False)
    follower = Follower(folder)
    server = Server(follower, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, follower, server
    server.shutdown()
    server.server_close()


def more(folder):
    """Adds one more finished round."""
    run = RunFolder(folder)
    last = run.metrics()[-1]
    run.append_metrics({**last, "round": last["round"] + 1})


def test_page_and_data_follow_the_run(served):
    folder, follower, server = served
    assert server.server_address[0] == HOST == "127.0.0.1"
    answer, page = get(server, "/")
    assert answer.status == 200 and b'data-live="data.json"' in page
    answer, body = get(server, "/data.json")
    tag = answer.headers["ETag"]
    assert json.loads(body)["runs"][0]["round"] == 4
    assert get(server, "/data.json", **{"If-None-Match": tag})[0].status == 304
    more(folder)
    follower.look(compute=False)
    answer, body = get(server, "/data.json", **{"If-None-Match": tag})
    assert answer.status == 200 and json.loads(body)["runs"][0]["round"] == 5
    # The evaluation belongs to an earlier round, and says so.
    assert "round 4" in json.loads(body)["runs"][0]["notes"][0]


class Moving:
    """A follower whose run finishes a round, and which looks again, each time it is read."""

    def __init__(self, follower, folder):
        self.follower, self.folder = follower, folder

    def __getattr__(self, name):
        value = getattr(self.follower, name)
        more(self.folder)
        self.follower.look(compute=False)
        return value


def tag_of(body):
    return f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"'


def test_a_look_during_a_request_does_not_tag_the_old_body_as_the_new(served):
    folder, follower, server = served
    server.follower = Moving(follower, folder)
    answer, body = get(server, "/data.json")
    assert answer.headers["ETag"] == tag_of(body)


def test_a_request_during_a_look_gets_a_body_with_its_own_tag(served, monkeypatch):
    folder, follower, server = served
    given = []

    def asked_meanwhile(body, digest_size):
        answer, got = get(server, "/data.json")
        given.append((answer.headers["ETag"], got))
        return hashlib.blake2b(body, digest_size=digest_size)

    monkeypatch.setattr("fedmt.reports.watch.hashlib", SimpleNamespace(blake2b=asked_meanwhile))
    more(folder)
    follower.look(compute=False)
    [(tag, got)] = given
    assert tag == tag_of(got)


def test_nobody_else_is_answered(served):
    _, _, server = served
    assert get(server, "/data.json", Host="example.org")[0].status == 403
    assert get(server, "/config.toml")[0].status == 404
    assert get(server, "/../config.toml")[0].status == 404


def test_a_run_without_a_round_can_be_watched(make_run, tmp_path):
    folder = make_run(tmp_path / "run", evaluated=False, finished=False)
    (folder / "metrics.jsonl").unlink()
    follower = Follower(folder)
    [run] = follower.snapshot.data["runs"]
    assert run["round"] == 0 and run["accuracy"] == {}


@pytest.mark.slow
def test_the_command_says_where_and_ends_with_ctrl_c(make_run, tmp_path, start):
    folder = make_run(tmp_path / "run", finished=False)
    process = start("watch", folder)
    try:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert address is not None, line
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=20)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[0]
        assert process.returncode == 0 and "No longer watching" in rest
    finally:
        process.kill()


def test_the_page_in_a_browser_follows(served, browser):
    folder, follower, server = served
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text))
    page.goto(server.address)
    page.wait_for_selector("body[data-connected=yes]")
    assert "round 4 of 8" in page.inner_text("#status")
    page.focus("#confusion-0")
    more(folder)
    follower.look(compute=False)
    page.locator("#status").filter(has_text="round 5 of 8").wait_for()
    assert page.evaluate("document.activeElement.id") == "confusion-0"  # the focus survives the redrawing
    assert complaints == []
    page.close()
