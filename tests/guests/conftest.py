"""The guests that the tests here share."""

import shutil
import tempfile

import pytest

from harness import guest as guests


@pytest.fixture(scope="session")
def short_folder():
    """For all tests together; libvirt's socket paths below it have at most 107 bytes."""
    path = tempfile.mkdtemp(prefix="psg", dir="/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def guest(short_folder):
    return guests.Guest(short_folder)


@pytest.fixture(scope="session")
def machine(guest, short_folder):
    """One that is up: its memory is filled, and it has said its digest."""
    with guests.Machine(guest, short_folder, "source") as source:
        source.wait_passes(2)
        yield source
