"""The interface that leads to another machine."""

import os

import pytest

from fastsft.ranks import process_group as launcher
from fastsft.runtime.launch import Launch, interface_towards


def test_loopback_leads_to_this_machine():
    assert interface_towards("127.0.0.1") == "lo"


def test_a_name_that_nobody_knows_leads_nowhere():
    assert interface_towards("no such host.invalid") is None


@pytest.mark.parametrize(
    ("chosen", "local", "found", "expected"),
    [
        ("", 2, "eth7", "lo"),  # one machine
        ("", 1, "eth7", "eth7"),
        ("", 1, None, ""),  # gloo's own choice
        ("ib0", 1, "eth7", "ib0"),
    ],
)
def test_interface_of_gloo(chosen, local, found, expected, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    if chosen:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
        monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "ib0")])
    monkeypatch.setattr(launcher, "interface_towards", lambda host: found)
    launcher._prepare_environment(Launch(0, 0, 2, local))
    assert os.environ.get("GLOO_SOCKET_IFNAME", "") == expected
