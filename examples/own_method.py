"""Run a method of your own: `python examples/own_method.py`.

The class is in a module (`own_methods/median.py`), because worker processes have to import it and
cannot import the main script. The folder of this script is on the import path by itself.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import coterie


def main() -> None:
    """Train with the median on five clients, and print the accuracy after every round."""
    with TemporaryDirectory() as folder:
        result = coterie.run(
            "digits/fedavg",
            out=Path(folder) / "run",
            run={"rounds": 6},
            partition={"kind": "iid", "clients": 5},
            method={"name": "own_methods.median:Median"},
        )
        for round, accuracy in result.history["accuracy"]:
            print(f"round {round + 1}  accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
