"""Where data files come from: a named folder, the environment variable, or a checked download from a local server."""

from __future__ import annotations

import doctest
import gc
import hashlib
import logging
import os
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest

from irmtv.datasets import fetch
from irmtv.datasets.fetch import VARIABLE, DataFile, find_files

CONTENT = b"1, 2, 3\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ONE = DataFile("sales", "one.csv", "http://source.invalid/one.csv", SHA256)
TWO = DataFile("sales", "two.csv", "http://source.invalid/two.csv", SHA256)


@pytest.fixture(autouse=True)
def _no_folder_is_set(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr(pooch.get_logger(), "level", logging.WARNING)
    return tmp_path / "cache" / "irmtv" / "sales"


@pytest.fixture
def server(monkeypatch):
    """Pages by their path, and which were asked for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pages, asked = {"/one.csv": CONTENT}, []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = pages.get(self.path)
            if callable(body):
                body(self)
                return
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    local = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    local.released = threading.Event()
    thread = threading.Thread(target=local.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    local.pages, local.asked, local.url = pages, asked, f"http://127.0.0.1:{local.server_port}"
    yield local
    local.shutdown()
    thread.join()
    local.server_close()


def put(path, content=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# ---- folders


@pytest.mark.parametrize(
    "place", ["sales/one.csv", "sales/one.csv.gz", "sales/one.csv.zip", "one.csv", "one.csv.gz", "one.csv.zip"]
)
def test_places_in_a_folder(tmp_path, place):
    path = put(tmp_path / place)
    put(tmp_path / "other" / "one.csv")
    assert find_files([ONE], tmp_path) == find_files([ONE], str(tmp_path)) == [path]


def test_every_file_in_the_order_asked_for(tmp_path):
    one, two = put(tmp_path / "one.csv"), put(tmp_path / "sales" / "two.csv.gz")
    assert find_files([TWO, ONE], tmp_path) == [two, one]


def test_the_data_sets_own_folder_goes_before_the_top(tmp_path):
    put(tmp_path / "one.csv")
    own = put(tmp_path / "sales" / "one.csv.gz")
    assert find_files([ONE], tmp_path) == [own]


def test_data_home_goes_before_the_variable(tmp_path, monkeypatch):
    given, said = put(tmp_path / "given" / "one.csv"), put(tmp_path / "said" / "one.csv")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "said"))
    assert find_files([ONE]) == [said]
    assert find_files([ONE], tmp_path / "given") == [given]


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = put(tmp_path / "data" / "one.csv")
    assert find_files([ONE], "~/data") == [path]
    monkeypatch.setenv(VARIABLE, "~/data")
    assert find_files([ONE]) == [path]


def test_a_file_that_is_not_there_is_named_with_every_place(tmp_path):
    put(tmp_path / "sales" / "one.csv")
    with pytest.raises(FileNotFoundError) as caught:
        find_files([ONE, TWO], tmp_path)
    text = str(caught.value)
    assert text.startswith(f"data_home must be a folder that holds two.csv of data set 'sales'. Got '{tmp_path}'")
    for place in ("sales/two.csv", "sales/two.csv.gz", "sales/two.csv.zip", "two.csv", "two.csv.gz", "two.csv.zip"):
        assert str(tmp_path / place) in text
    assert "one.csv" not in text
    assert "Put there http://source.invalid/two.csv" in text
    assert text.endswith("or leave data_home out and IRMTV_DATA unset to download.")


def test_all_missing_files_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        find_files([ONE, TWO])
    text = str(caught.value)
    assert text.startswith("environment variable IRMTV_DATA must be a folder that holds one.csv and two.csv of")
    assert str(tmp_path / "sales" / "one.csv") in text and str(tmp_path / "two.csv.gz") in text
    assert text.endswith("or unset IRMTV_DATA to download.")


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"one\.csv of data set 'sales'.*nowhere', which does not exist\. Put"):
        find_files([ONE], tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"one\.csv', which is a file\. Put"):
        find_files([ONE], put(tmp_path / "one.csv"))


def test_what_has_no_source_is_not_offered_for_download(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Put one\.csv there, or name the folder that holds it\.$"):
        find_files([DataFile("sales", "one.csv")], tmp_path)
    with pytest.raises(FileNotFoundError, match=r"needs one\.csv, which cannot be downloaded\. Give data_home="):
        find_files([DataFile("sales", "one.csv")])


# ---- downloads


def test_a_download_is_kept(cache, server):
    file = DataFile("sales", "one.csv", server.url + "/one.csv", SHA256)
    assert find_files([file]) == [cache / "one.csv"]
    assert (cache / "one.csv").read_bytes() == CONTENT
    assert find_files([file]) == [cache / "one.csv"]
    assert server.asked == ["/one.csv"]


def test_an_empty_variable_says_nothing(cache, server, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    assert find_files([DataFile("sales", "one.csv", server.url + "/one.csv", SHA256)]) == [cache / "one.csv"]


def test_a_damaged_file_in_the_cache_is_replaced(cache, server):
    put(cache / "one.csv", b"1, 2")
    (path,) = find_files([DataFile("sales", "one.csv", server.url + "/one.csv", SHA256)])
    assert path.read_bytes() == CONTENT


def test_a_damaged_download_is_refused_and_not_kept(cache, server):
    server.pages["/one.csv"] = CONTENT[:-3]
    url = server.url + "/one.csv"
    with pytest.raises(ValueError) as caught:
        find_files([DataFile("sales", "one.csv", url, SHA256)])
    text = str(caught.value)
    assert f"one.csv of data set 'sales', downloaded from {url}, must have sha256 {SHA256}." in text
    assert hashlib.sha256(CONTENT[:-3]).hexdigest() in text
    assert "give data_home=, or set IRMTV_DATA" in text
    assert list(cache.iterdir()) == []


def test_a_named_folder_is_never_filled(cache, server, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        find_files([DataFile("sales", "one.csv", server.url + "/one.csv", SHA256)], tmp_path / "empty")
    assert server.asked == [] and not cache.exists() and list((tmp_path / "empty").iterdir()) == []


def test_without_a_network(cache, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/one.csv"  # nobody listens
    with pytest.raises(ConnectionError) as caught:
        find_files([DataFile("sales", "one.csv", url, SHA256)])
    text = str(caught.value)
    assert text.startswith(f"one.csv of data set 'sales' is not whole in '{cache}' and could not be downloaded")
    assert f"from {url} (" in text
    assert "give data_home=, or set IRMTV_DATA: the folder that holds it." in text


def test_a_page_that_is_gone(cache, server):
    with pytest.raises(ConnectionError, match=r"two\.csv of data set 'sales'.*404"):
        find_files([DataFile("sales", "two.csv", server.url + "/two.csv", SHA256)])


# a page is a function of the request here


def answer(request, content, length=None, status=200, **headers):
    request.send_response(status)
    for name, value in {"Content-Length": str(len(content) if length is None else length), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(content)


def cut_off(request):
    answer(request, CONTENT[:3], length=len(CONTENT))


def too_short_a_length(request):
    answer(request, CONTENT, length=3)


def too_long_a_length(request):
    answer(request, CONTENT, length=10 * len(CONTENT))


def cut_off_in_chunks(request):
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b"3\r\n" + CONTENT[:3] + b"\r\n5\r\n")


def silent(request):
    request.server.released.wait(20)


def silent_in_the_middle(request):
    answer(request, CONTENT[:3], length=len(CONTENT))
    request.wfile.flush()
    request.server.released.wait(20)


def not_http(request):
    request.wfile.write(b"what?\r\n")


def redirected_for_ever(request):
    answer(request, b"", status=302, Location="/one.csv")


def redirected_to_nothing(request):
    answer(request, b"", status=302, Location="/gone.csv")


def redirected_to_a_file(request):
    answer(request, b"", status=302, Location="file:///etc/hostname")


def gone(request):
    answer(request, b"<html>not found</html>", status=500)


def another_page(request):  # as of a network that asks for a password first
    answer(request, b"<html>log in</html>")


BROKEN_PAGES = [
    cut_off, too_short_a_length, too_long_a_length, cut_off_in_chunks, silent, silent_in_the_middle, not_http,
    redirected_for_ever, redirected_to_nothing, redirected_to_a_file, gone, another_page,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of requests, with the error
@pytest.mark.time_limit(120)
@pytest.mark.parametrize("before", [None, b"1, 2"], ids=["not there", "damaged before"])
@pytest.mark.parametrize("page", BROKEN_PAGES)
def test_a_broken_download_is_named_and_not_kept_and_the_next_one_succeeds(cache, server, monkeypatch, page, before):
    monkeypatch.setattr(fetch, "TIMEOUT", 0.5)
    server.pages["/one.csv"], url = page, server.url + "/one.csv"
    file = DataFile("sales", "one.csv", url, SHA256)
    if before is not None:
        put(cache / "one.csv", before)
    with pytest.raises((ConnectionError, ValueError)) as caught:
        find_files([file])
    server.released.set()
    text = str(caught.value)
    assert text.startswith("one.csv of data set 'sales'") and url in text and "\n" not in text
    assert "Try again" in text and "give data_home=, or set IRMTV_DATA" in text
    assert [p.read_bytes() for p in cache.iterdir()] == ([] if before is None else [before])
    server.pages["/one.csv"] = CONTENT
    assert find_files([file]) == [cache / "one.csv"]
    assert [p.read_bytes() for p in cache.iterdir()] == [CONTENT]
    del caught
    gc.collect()


def slow(request):
    answer(request, b"", length=len(CONTENT))
    for i in range(len(CONTENT)):
        request.server.released.wait(0.01)
        request.wfile.write(CONTENT[i : i + 1])
        request.wfile.flush()


def moved(request):
    answer(request, b"", status=301, Location="/there.csv")


@pytest.mark.parametrize("page", [slow, moved])
def test_a_slow_download_and_one_that_has_moved(cache, server, page):
    server.pages |= {"/one.csv": page, "/there.csv": CONTENT}
    assert find_files([DataFile("sales", "one.csv", server.url + "/one.csv", SHA256)]) == [cache / "one.csv"]
    assert [p.read_bytes() for p in cache.iterdir()] == [CONTENT]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("ctrl_c")
def test_a_download_that_is_stopped_leaves_nothing(cache, server):
    def stopped(request):
        answer(request, CONTENT[:3], length=len(CONTENT))
        request.wfile.flush()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        request.server.released.wait(20)

    server.pages["/one.csv"] = stopped
    with pytest.raises(KeyboardInterrupt):
        find_files([DataFile("sales", "one.csv", server.url + "/one.csv", SHA256)])
    server.released.set()
    assert list(cache.iterdir()) == []
    gc.collect()


# ---- links and ..


def test_links_and_dots_are_followed(tmp_path, monkeypatch):
    path = put(tmp_path / "real" / "sales" / "one.csv")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for home in (tmp_path / "link", tmp_path / "link" / ".." / "real", tmp_path / "real" / "sales" / ".."):
        monkeypatch.setenv(VARIABLE, str(home))
        (found,) = find_files([ONE])
        assert found.samefile(path) and str(found).startswith(str(home))
    monkeypatch.chdir(tmp_path / "real" / "sales")
    monkeypatch.setenv(VARIABLE, "..")
    assert find_files([ONE])[0].samefile(path)


def test_links_that_lead_nowhere_or_to_themselves_are_named(tmp_path, monkeypatch):
    for name, to in (("nowhere", "not here"), ("itself", "itself")):
        (tmp_path / name).symlink_to(tmp_path / to)
        with pytest.raises(FileNotFoundError, match=rf"Got '.*{name}', which does not exist"):
            find_files([ONE], tmp_path / name)
        (tmp_path / "sales").mkdir(exist_ok=True)
        (tmp_path / "sales" / "one.csv").unlink(missing_ok=True)
        (tmp_path / "sales" / "one.csv").symlink_to(tmp_path / to)
        with pytest.raises(FileNotFoundError, match="looked for and not found"):
            find_files([ONE], tmp_path)


def test_a_folder_or_a_pipe_by_the_name_of_a_file_is_none(tmp_path):
    (tmp_path / "one.csv").mkdir()
    (tmp_path / "sales").mkdir()
    os.mkfifo(tmp_path / "sales" / "one.csv")
    with pytest.raises(FileNotFoundError, match="looked for and not found"):
        find_files([ONE], tmp_path)


def test_docstring_examples():
    outcome = doctest.testmod(fetch)
    assert outcome.attempted > 0
    assert outcome.failed == 0
