"""Your own data: images, labels and who they belong to, as a data set that a config can name.

In a config beside this file, `data.name = "own_data:DATA"` is this data set. Run by itself, it
trains one round after the other on it: each device holds what one person drew.
"""

import numpy as np

from sparsefed.data.own import from_arrays

rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 1000)  # yours: what is on the image, ...
people = rng.integers(0, 50, 1000)  # ... and whose it is
images = rng.integers(0, 100, (1000, 8, 8), np.uint8)  # your images: [N, H, W] or [N, H, W, C]
images[labels == 1, 2:6, 2:6] += 120  # (here: a bright square or none)
DATA = from_arrays(images, labels, users=people, classes=["nothing", "square"])

# An image folder, or a data set of Hugging Face's, takes one line as well:
#   DATA = from_folder("photos", size=(32, 32), user=lambda path: path.stem.split("_")[0])
#   DATA = from_huggingface(datasets.load_dataset("..."), image="img", label="label", user="writer")

if __name__ == "__main__":
    from sparsefed.config import build, parse

    experiment = build(
        parse(
            {
                "rounds": 50,
                "evaluate_every": 10,
                "data": {"name": "own_data:DATA", "partition": "by_user"},
                "model": {"name": "softmax"},
                "train": {"cohort": 10, "schedule": "constant", "lr": 0.05},
                "defense": {"name": "sparsefed", "k": 50, "clip_norm": 1.0},
            }
        )
    )
    for report in experiment.reports(experiment.begin()):
        if "test_accuracy" in report.metrics:
            print(f"round {report.state.round:2}  test accuracy {report.metrics['test_accuracy']:.1%}")
