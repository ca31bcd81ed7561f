"""Trains one classifier with the given parameters and logs its accuracy."""

import os
from pathlib import Path

import mlflow
import yaml
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

given = yaml.safe_load(Path(os.environ["HYPERPARAMETERS_PATH"]).read_text())
images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(images / 16.0, labels, test_size=0.3, random_state=0)
model = MLPClassifier(
    hidden_layer_sizes=(given["hidden"],),
    learning_rate_init=given["learning_rate"],
    max_iter=30,
    random_state=given["seed"],
)
model.fit(train_x, train_y)
right = model.score(test_x, test_y)
mlflow.log_metric("accuracy", right)
print(f"hidden {given['hidden']}, learning rate {given['learning_rate']}: accuracy {right:.4f}")
