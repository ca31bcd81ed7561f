"""Starts a Ray cluster of this run's own: ``python cluster.py DRIVER [ARGS...]`` on every node of the gang.

Node 0 starts the head and then the driver, which finds the cluster by RAY_ADDRESS; the others join it and stay until
the head is gone. Everything that two clusters on one machine could share is the attempt's: the port of the head is the
rendezvous port, all others are free ones, the temporary folder is the attempt's, and no RAY_* variable comes in.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

JOIN_S = 120


def free_ports(count):
    """Return ports that nobody has now, below what Ray gives to its workers."""
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def clean_environment():
    """Return the environment without any RAY_* of somebody else's cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def node_command(temporary, *more):
    """Return ``ray start`` for one node, with ports of its own; it stays in the foreground."""
    names = [
        "node-manager-port",
        "object-manager-port",
        "runtime-env-agent-port",
        "dashboard-agent-listen-port",
    ]
    names += ["dashboard-agent-grpc-port", "metrics-export-port"]
    ports = [f"--{name}={port}" for name, port in zip(names, free_ports(len(names)), strict=True)]
    gpus = len([each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each])
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={os.environ['LOCAL_ADDR']}", f"--temp-dir={temporary}", f"--num-gpus={gpus}"),
        *("--num-cpus=1", "--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0"),
        *ports,
        *more,
    ]


def wait_until(alive, check, what):
    """Wait for ``check``; end with a message when it takes too long or the process is gone."""
    deadline = time.monotonic() + JOIN_S
    while not check():
        if alive.poll() is not None:
            sys.exit(f"ray start ended with code {alive.returncode} before {what}")
        if time.monotonic() > deadline:
            sys.exit(f"{what} took more than {JOIN_S} s")
        time.sleep(0.2)


def end(ray):
    """Have ``ray start`` end. A node whose head is gone would wait for it; what it started ends with it or the run."""
    ray.terminate()
    try:
        ray.wait(5)
    except subprocess.TimeoutExpired:
        ray.kill()
        ray.wait()


def answers(address, port):
    """Return whether somebody listens there."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def head(environment, temporary, address, port, driver):
    """Start the head, run the driver, take the cluster down; return the driver's exit code."""
    command = node_command(temporary, "--head", f"--port={port}", "--include-dashboard=false")
    ray = subprocess.Popen(command, env=environment)
    try:
        wait_until(ray, lambda: answers(address, port), "the head")
        told = {**environment, "RAY_ADDRESS": f"{address}:{port}", "NODES": os.environ["NUM_NODES"]}
        return subprocess.run([sys.executable, *driver], env=told, check=False).returncode
    finally:
        end(ray)


def worker(environment, temporary, address, port):
    """Join the head and stay until it is gone."""
    deadline = time.monotonic() + JOIN_S
    while not answers(address, port):
        if time.monotonic() > deadline:
            sys.exit(f"no head at {address}:{port} within {JOIN_S} s")
        time.sleep(0.2)
    ray = subprocess.Popen(node_command(temporary, f"--address={address}:{port}"), env=environment)
    try:
        while answers(address, port) and ray.poll() is None:
            time.sleep(0.5)
        return 0
    finally:
        end(ray)


def main():
    """Play this node's part."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Ray's sockets need a short path, so it is made below /tmp; TMPDIR may be too long for one.
    temporary = tempfile.mkdtemp(prefix=f"ray-{os.environ['AIRYARD_RUN_ID']}-", dir="/tmp")
    try:
        if os.environ["NODE_RANK"] == "0":
            return head(clean_environment(), temporary, address, port, sys.argv[1:])
        return worker(clean_environment(), temporary, address, port)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
