"""A small Tune search on scikit-learn's digits; every trial's accuracy is a metric of the run in MLflow."""

import os
import tempfile

import mlflow
import ray
from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier


def trial(config):
    """Train one classifier and report its accuracy."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.25, random_state=1)
    model = MLPClassifier(
        (config["hidden"],), learning_rate_init=config["learning_rate"], max_iter=40, random_state=1
    )
    model.fit(split[0], split[2])
    tune.report({"accuracy": float(model.score(split[1], split[3]))})


ray.init(log_to_driver=False)  # by RAY_ADDRESS, which cluster.py set
space = {"hidden": tune.grid_search([16, 64]), "learning_rate": tune.grid_search([0.001, 0.01])}
# Every node writes its results here: a run over several machines needs a folder that all of them have.
storage = os.environ.get("TUNE_STORAGE") or tempfile.mkdtemp(prefix="tune-", dir="/tmp")
results = tune.Tuner(
    trial, param_space=space, run_config=tune.RunConfig(storage_path=storage, verbose=0)
).fit()
if results.num_errors:
    raise SystemExit(f"{results.num_errors} trials failed")
with mlflow.start_run():  # the run that Airyard opened: MLFLOW_RUN_ID names it
    for step, result in enumerate(results):
        mlflow.log_metric("accuracy", result.metrics["accuracy"], step=step)
    best = results.get_best_result("accuracy", mode="max")
    mlflow.log_params(best.config)
    mlflow.log_metric("best_accuracy", best.metrics["accuracy"])
print(f"{len(results)} trials, best accuracy {best.metrics['accuracy']:.3f} with {best.config}")
