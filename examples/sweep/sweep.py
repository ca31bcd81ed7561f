"""An agent's loop: eight trials at once, take each as it ends, start a second round from the best.

It uses nothing but the command line and its JSON, as an agent would. Running it again with the same name finds the runs
that are there already, because every submit carries an idempotency key.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def airyard(*arguments: str, accept: tuple[int, ...] = (0,)) -> dict:
    """Run one command and return the data of its JSON envelope."""
    done = subprocess.run(
        ["airyard", "-o", "json", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    answer = json.loads(done.stdout)
    if done.returncode not in accept:
        raise SystemExit(f"airyard {' '.join(arguments)}: {json.dumps(answer.get('error', answer))}")
    return answer["data"]


def submit(sweep: str, round_number: int, trial: int, parameters: dict) -> int:
    overrides = [
        item for name, value in parameters.items() for item in ("--override", f"parameters.{name}={value}")
    ]
    data = airyard(
        "run", str(HERE / "workload.yaml"), "--name", f"{sweep}-{round_number}-{trial}",
        "--tag", f"sweep={sweep}", "--tag", f"round={round_number}",
        "--idempotency-key", f"{sweep}/{round_number}/{trial}", *overrides,
    )  # fmt: skip
    return data["run_id"]


def play_round(sweep: str, number: int, trials: list[dict]) -> tuple[float, dict]:
    """Submit all trials at once, wait for any, read each one's metric; return the best."""
    waiting = {submit(sweep, number, index, trial): trial for index, trial in enumerate(trials)}
    results = []
    while waiting:
        answer = airyard("wait", "--any", *map(str, waiting), accept=(0, 1, 6, 7, 9, 124))
        for run in answer["runs"]:
            if run["state"] != "ENDED" or run["run_id"] not in waiting:
                continue
            trial = waiting.pop(run["run_id"])
            if run["outcome"] != "SUCCEEDED":
                print(
                    f"round {number}: run {run['run_id']} {run['outcome']}: {run['failure']}", file=sys.stderr
                )
                continue
            accuracy = airyard("metrics", str(run["run_id"]), "--key", "accuracy")["runs"][0]["metrics"][
                "accuracy"
            ]["value"]
            results.append((accuracy, -trials.index(trial), trial))
            print(f"round {number}: run {run['run_id']} {trial} -> {accuracy:.4f}", flush=True)
    if not results:
        raise SystemExit(f"no trial of round {number} succeeded")
    accuracy, _, best = max(
        results, key=lambda result: result[:2]
    )  # of equals the first, in whatever order they ended
    return accuracy, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="sweep", help="names the sweep; the same name finds the same runs")
    name = parser.parse_args().name
    first = [{"hidden": h, "learning_rate": r} for h in (16, 64) for r in (0.001, 0.005, 0.02, 0.1)]
    accuracy, best = play_round(name, 1, first)
    print(f"best of round 1: {best} with {accuracy:.4f}")
    rate = best["learning_rate"]
    second = [{"hidden": best["hidden"] * k, "learning_rate": rate * f} for k in (1, 2) for f in (0.7, 1.4)]
    better, best_two = play_round(name, 2, second)
    accuracy, best = max((accuracy, best), (better, best_two), key=lambda item: item[0])
    print(f"best of the sweep: {best} with {accuracy:.4f}")


if __name__ == "__main__":
    main()
