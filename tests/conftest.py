"""
What every pytest here stands on: a time limit for each test, short private folders for sockets,
and the end of whatever a test has started.

A test that is too slow is ended in three steps: SIGALRM raises in Python code; ten seconds later
all programs that the test started are killed, which ends a C library's wait for one of them; and
a minute after that the whole run ends with a traceback. PENSTOCK_TIME_FACTOR stretches all of it
(sanitizer builds).
"""

import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import process  # noqa: E402

DEFAULT_LIMIT = 120


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not in the sanitizer stages")
    config.addinivalue_line("markers", "threaded: several workers at once; runs under TSan too")
    config.addinivalue_line("markers", "limit(seconds): instead of the usual time limit")
    os.environ.setdefault("PENSTOCK_TEST_RUN", uuid.uuid4().hex)
    # A background job of a shell has SIGINT ignored; what we start must not inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


class TooSlow(Exception):
    """The test's time was up."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    marker = item.get_closest_marker("limit")
    limit = (marker.args[0] if marker else DEFAULT_LIMIT) * process.TIME_FACTOR

    def too_slow(number, frame):
        faulthandler.dump_traceback()
        raise TooSlow(f"not done after {limit:g} s")

    killer = threading.Timer(limit + 10, process.kill_all)
    killer.daemon = True
    old = signal.signal(signal.SIGALRM, too_slow)
    killer.start()
    faulthandler.dump_traceback_later(limit + 70, exit=True)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        killer.cancel()
        signal.signal(signal.SIGALRM, old)


@pytest.fixture(autouse=True)
def _nothing_left():
    """
    What a test started and did not stop is killed, and is the test's failure. Servers of fixtures
    with a wider scope are there before this one, and stay.
    """
    before = process.living()
    yield
    left = process.kill_all(but=before)
    assert not left, f"left running: {left}"


@pytest.fixture
def short_tmp():
    """A folder of a short name: a socket's path has at most 107 bytes."""
    path = tempfile.mkdtemp(prefix="ps", dir="/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)
