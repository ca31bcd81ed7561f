"""Runs one task on each node of the run's Ray cluster and says where."""

import os
import time

import ray

ray.init(log_to_driver=False)  # by RAY_ADDRESS, which cluster.py set
nodes = int(os.environ["NODES"])
deadline = time.monotonic() + 120
while len([node for node in ray.nodes() if node["Alive"]]) < nodes:
    if time.monotonic() > deadline:
        raise SystemExit(f"{len(ray.nodes())} of {nodes} nodes joined within 120 s")
    time.sleep(0.2)


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def square(number):
    """Return the square and the node that computed it."""
    time.sleep(0.2)
    return number * number, ray.get_runtime_context().get_node_id()


done = ray.get([square.remote(number) for number in range(8)])
print(f"squares {[value for value, _ in done]} from {len({node for _, node in done})} Ray nodes")
