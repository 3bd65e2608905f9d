"""Network namespaces: made, shaped, and removed however they are left."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcsim
from gcsim.analysis.live import namespaces
from gcsim.analysis.live.namespaces import (
    CHARGED,
    CONTROLS,
    SEGMENT,
    Shape,
    missing,
    network,
    remove_stale,
    run,
)
from gcsim.errors import InputError
from gcsim.signals import stoppable

RATE = 40 * 10**6


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """What runs in the background, or under nohup, ignores some; so would all that it starts."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _of(process: int) -> list[str]:
    """The namespaces that a process has made."""
    lines = run(["ip", "netns", "list"]).splitlines()
    return [line.split()[0] for line in lines if line.startswith(f"gcsim-{process}-")]


def _host() -> tuple[str, ...]:
    """What of this machine itself must not change."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8")
    return (run(["ip", "-o", "link"]), run(["ip", "route"]), run(["tc", "qdisc"]), control)


@pytest.mark.usefixtures("rights")
def test_ranks_have_a_shaped_card_each_and_the_machine_keeps_its_own() -> None:
    before = _host()
    with network(3, RATE) as made:
        assert sorted(_of(os.getpid())) == sorted([*made.ranks, made.ranks[0][:-1] + "switch"])
        for rank in range(3):
            shown = run(made.command(rank, ["ip", "-o", "-4", "addr", "show", made.interface]))
            assert made.address(rank) in shown
            queue = run(made.command(rank, ["tc", "qdisc", "show", "dev", made.interface]))
            assert "tbf" in queue
            assert "rate 40Mbit" in queue
            where = "/proc/sys/net/ipv4/tcp_congestion_control"
            assert run(made.command(rank, ["cat", where])).strip() == made.control
        assert made.control in CONTROLS
        assert _host() == before
    assert _of(os.getpid()) == []
    assert _host() == before


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_they_are_gone_after_an_exception(error: type[BaseException]) -> None:
    def fail_inside() -> None:
        with network(2, RATE):
            assert len(_of(os.getpid())) == 3
            raise error

    with pytest.raises(error):
        fail_inside()
    assert _of(os.getpid()) == []


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("failing", ["type bridge", "netns add gcsim-.*-1", "root tbf", "master"])
def test_a_set_up_that_fails_half_way_leaves_nothing(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    def break_it(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if re.search(failing, " ".join(command)):
            return real(["ip", "netns", "delete", "no such namespace"])
        return real(command)

    real = namespaces._call
    monkeypatch.setattr(namespaces, "_call", break_it)
    with pytest.raises(InputError, match="failed"), network(2, RATE):
        pytest.fail("it was made")
    monkeypatch.undo()
    assert _of(os.getpid()) == []


_HOLDS = """
    import os, time
    from gcsim.analysis.live.namespaces import network
    with network(2, 10**7):
        print("there", flush=True)
        time.sleep(60)
"""


def _holder() -> subprocess.Popen[str]:
    """A process that has namespaces."""
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_HOLDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(gcsim.__file__).resolve().parent.parent)},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "there\n"
    return started


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_told_to_stop_removes_its_own(number: int) -> None:
    with _holder() as started:
        try:
            assert len(_of(started.pid)) == 3
            started.send_signal(number)
            assert started.wait(20) == -signal.SIGINT  # Python ends by the signal itself
            assert _of(started.pid) == []
        finally:
            started.kill()


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_they_are_removed_waits_until_they_are_gone(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(command: Sequence[str]) -> str:
        if "delete" in command:
            os.kill(os.getpid(), number)
        return run(command)

    others = threading.Event()  # a thread that signals may be delivered to
    thread = threading.Thread(target=others.wait)
    thread.start()

    def leave_signalled() -> None:
        with stoppable(), network(3, RATE):
            monkeypatch.setattr(namespaces, "run", signalled)

    try:
        with pytest.raises(KeyboardInterrupt):
            leave_signalled()
    finally:
        monkeypatch.undo()
        others.set()
        thread.join()
    assert _of(os.getpid()) == []


@pytest.mark.usefixtures("rights")
def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else() -> None:
    with _holder() as dead, _holder() as living:
        try:
            dead.kill()
            dead.wait(20)
            assert len(_of(dead.pid)) == 3
            with network(1, RATE) as own:
                assert _of(dead.pid) == []
                assert len(_of(living.pid)) == 3
                remove_stale()
                assert set(own.ranks) <= set(_of(os.getpid()))
        finally:
            dead.kill()
            living.terminate()
            living.wait(20)
    assert _of(living.pid) == []


_RECEIVES = """
    import socket, sys, time
    with socket.create_server((sys.argv[1], 5001)) as server:
        print("listening", flush=True)
        with server.accept()[0] as one:
            count = 0
            while count < int(sys.argv[2]):
                count += len(one.recv(1 << 16))
        print(time.monotonic(), flush=True)
"""
_SENDS = """
    import socket, sys, time
    with socket.create_connection((sys.argv[1], 5001), timeout=20) as one:
        print(time.monotonic(), flush=True)
        one.sendall(bytes(int(sys.argv[2])))
"""


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("both_ways", [False, True])
def test_the_rate_is_what_limits_each_direction_by_itself(both_ways: bool) -> None:
    nbytes = 4_000_000
    with network(2, RATE) as made:
        pairs = [(0, 1), (1, 0)] if both_ways else [(0, 1)]
        started: list[subprocess.Popen[str]] = []

        def start(rank: int, script: str, to: int) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", textwrap.dedent(script), made.address(to), str(nbytes)]
            one = subprocess.Popen(made.command(rank, command), stdout=subprocess.PIPE, text=True)
            started.append(one)
            return one

        def line(one: subprocess.Popen[str]) -> str:
            assert one.stdout is not None
            return one.stdout.readline().strip()

        try:
            receivers = [start(to, _RECEIVES, to) for _, to in pairs]
            assert [line(one) for one in receivers] == ["listening"] * len(pairs)
            senders = [start(rank, _SENDS, to) for rank, to in pairs]
            begun = min(float(line(one)) for one in senders)
            ended = max(float(line(one)) for one in receivers)
        finally:
            for one in started:
                one.kill()
                one.wait(20)
                assert one.stdout is not None
                one.stdout.close()
    # Data alone at the goodput; a bucket at each end is free; acknowledgements and others'
    # programs on this machine may cost up to a quarter more.
    ideal = nbytes / (RATE / 8 * SEGMENT / CHARGED)
    free = 2 * made.shape.burst * 8 / RATE
    assert ideal - free <= ended - begun <= 1.25 * ideal + 0.1


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "Darwin" in missing()[0].message
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    said = [str(problem) for problem in missing()]
    assert len(said) == 2
    assert "'tc'" in said[0]
    assert "sudo" in said[1]
    with pytest.raises(InputError, match="sudo"), network(2, RATE):
        pytest.fail("it was made")


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("ranks", [0, 65])
def test_a_number_of_ranks_that_cannot_be_had(ranks: int) -> None:
    with pytest.raises(InputError, match="1 to 64"), network(ranks, RATE):
        pytest.fail("it was made")


def test_a_process_number_that_was_given_again_is_not_taken_for_the_maker() -> None:
    assert namespaces._started(os.getpid()).isdigit()
    child = subprocess.Popen([sys.executable, "-c", ""])
    time.sleep(0)
    first = namespaces._started(child.pid)
    assert first != ""
    child.wait(20)
    assert namespaces._started(child.pid) == ""


ONE_WAY = Fraction(SEGMENT, CHARGED)
"""Data over what is charged, of a rank that sends and does not receive."""

rates = st.integers(10**6, 10**11)


@given(rates)
def test_the_bucket_holds_what_the_longest_frame_is_charged_and_no_more(rate: int) -> None:
    # The kernel charges a frame of n segments n times (data + headers); `gso_max_size` limits the
    # frame as it is handed over, with its headers once.
    shape = Shape.of(rate)
    segments = (shape.frame - (CHARGED - SEGMENT)) // SEGMENT
    assert segments * CHARGED <= shape.burst < (segments + 1) * CHARGED
    assert shape.frame < 65536


@given(rates)
def test_a_frame_takes_a_millisecond_where_its_limits_allow(rate: int) -> None:
    shape = Shape.of(rate)
    seconds = shape.burst * 8 / rate
    if 4 < shape.segments < 44:
        assert abs(seconds - 0.001) <= CHARGED * 8 / rate / 2 + 1e-12
    assert (shape.segments == 44) == (rate * 0.001 / 8 / CHARGED >= 43.5)


def test_goodput_is_data_over_what_is_charged() -> None:
    # Ethernet 14, IP 20, TCP 20 with time stamps 12: 66 bytes to 1448, at an MTU of 1500.
    charged, data = 1500 + 14, 1500 - 20 - 20 - 12
    assert Fraction(data, charged) == ONE_WAY
    # Both ways: a frame of eight segments, and an acknowledgement of 66 bytes for one received.
    assert Shape.of(100 * 10**6).efficiency == Fraction(8 * 1448, 8 * 1514 + 66)


@given(rates)
def test_acknowledgements_cost_little_and_least_with_long_frames(rate: int) -> None:
    shape, double = Shape.of(rate), Shape.of(2 * rate)
    assert 0.98 * ONE_WAY < shape.efficiency < ONE_WAY
    assert double.efficiency >= shape.efficiency
