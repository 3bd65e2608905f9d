"""How late are messages that lose packets on this machine's own TCP? (Linux, root.)

    python -m tests.simulator.network.linux_tcp 3 0.05 --round-trip 8 --messages 900

Two network namespaces, a TUN device in each, and between them a forwarder that holds every packet
for half a round trip and drops packets of the data at random. One connection, with the machine's
congestion control; each message is answered by one byte, the next begins 20 ms later. Printed: the
mean delay over what the fastest tenth takes, and which share is later than 150 ms. What it was
compared with: docs/model/losses.md.
"""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import subprocess
import time

SEGMENT = 1448
NEW_NETWORK, SET_TUN, TUN_WITHOUT_HEADER = 0x40000000, 0x400454CA, 0x1001
HERE, THERE, PORT = "10.9.0.1", "10.9.0.2", 5000


def tun(name: str, address: str, peer: str) -> int:
    """A TUN device in a network namespace of its own, into which this process moves."""
    if ctypes.CDLL(None).unshare(NEW_NETWORK):
        raise PermissionError("network namespaces need root")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, SET_TUN, struct.pack("16sH", name.encode(), TUN_WITHOUT_HEADER))
    for command in (
        f"addr add {address} peer {peer} dev {name}",
        f"link set {name} mtu 1500 txqueuelen 2000 up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return device


def serve(size: int, ready: int) -> None:
    with socket.create_server((HERE, PORT)) as server:
        os.write(ready, b"x")
        connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        left = size
        while left:
            part = connection.recv(left)
            if not part:
                return
            left -= len(part)
        connection.sendall(b"k")


def send(size: int, messages: int, results: int) -> None:
    connection = socket.create_connection((HERE, PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(messages):
        start = time.perf_counter()
        connection.sendall(b"x" * size)
        connection.recv(1)
        os.write(results, struct.pack("d", time.perf_counter() - start))
        time.sleep(0.02)


def forward(server: int, client: int, rate: float, one_way: float, results: int) -> list[float]:
    """Until the client has ended: what it measured, seconds."""
    held: list[tuple[float, int, int, bytes]] = []
    found: list[float] = []
    draw, number = random.Random(), 0
    while True:
        now = time.perf_counter()
        while held and held[0][0] <= now:
            _, _, into, packet = heapq.heappop(held)
            os.write(into, packet)
        wait = max(0.0, held[0][0] - time.perf_counter()) if held else None
        for ready in select.select([server, client, results], [], [], wait)[0]:
            if ready == results:
                value = os.read(results, 8)
                if not value:
                    return found
                found += struct.unpack("d", value)
                continue
            packet, number = os.read(ready, 65536), number + 1
            if ready == client and len(packet) > 200 and draw.random() < rate:
                continue
            into = server if ready == client else client
            heapq.heappush(held, (time.perf_counter() + one_way, number, into, packet))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    arguments.add_argument("packets", type=int)
    arguments.add_argument("rate", type=float)
    arguments.add_argument("--round-trip", type=float, default=8.0, help="milliseconds")
    arguments.add_argument("--messages", type=int, default=900)
    given = arguments.parse_args()
    size = given.packets * SEGMENT
    here = tun("ta", HERE, THERE)
    listening, ready = os.pipe()
    server = os.fork()
    if server == 0:
        serve(size, ready)
        os._exit(0)
    os.read(listening, 1)
    there = tun("tb", THERE, HERE)
    results, out = os.pipe()
    if os.fork() == 0:
        send(size, given.messages, out)
        os._exit(0)
    os.close(out)
    taken = forward(here, there, given.rate, given.round_trip / 2000, results)
    os.kill(server, signal.SIGTERM)  # nobody carries the end of the connection to it
    base = sorted(taken)[len(taken) // 10]
    late = [1000 * max(0.0, value - base) for value in taken]
    share = sum(value > 150 for value in late) / len(late)
    print(f"{given.packets} packets, {given.rate:g} lost: {len(late)} messages, mean delay "
          f"{sum(late) / len(late):.1f} ms, {share:.1%} later than 150 ms")  # fmt: skip


if __name__ == "__main__":
    main()
