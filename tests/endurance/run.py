"""Do the trials behind docs/reliability.md, part by part; what was interrupted is continued.

    python tests/endurance/run.py                     # every part, with its own number of trials
    python tests/endurance/run.py kills --trials 20   # one part, fewer trials
    python tests/endurance/run.py kills --minutes 10  # as many as fit, the rest another time
    python tests/endurance/run.py sites --share 1/2   # every other trial, beside --share 2/2

Every trial is a line of `endurance/PART.jsonl` (`--folder`). Trials of other sources than the
present ones, or of an earlier form of the trial, do not count and are done again. A part that is
whole goes to `tests/endurance/outcome.json`, with `--write` also one with fewer trials; `python
docs/reliability.py` makes the page of it.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import bench

if __name__ == "__main__":
    bench.compute_in_one_thread()
bench.find_modules()

import kills  # noqa: E402
import parts  # noqa: E402

import coterie  # noqa: E402
from coterie.core import interrupts  # noqa: E402

OUTCOME = Path(__file__).with_name("outcome.json")
_OWN_CLASS = re.compile(r"(\w+):\w+")  # as configurations name classes of test modules


def sources() -> str:
    """A digest of the package, without comments and docstrings: trials of another do not count."""
    package = Path(coterie.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".toml"):
            content = _strip(path) if path.suffix == ".py" else path.read_bytes()
            digest.update(str(path.relative_to(package)).encode() + content)
    return digest.hexdigest()[:16]


def _strip(path: Path) -> bytes:
    """Write the code of a module without layout, comments and docstrings."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree).encode()


def form(part: bench.Part) -> str:
    """A digest of a part's trial: its command, and every test module that it uses."""
    words = [word for word in part.command if word.endswith(".py")]
    files = {bench.ROOT / word for word in words}
    if part.bench is not None:
        files.add(Path(str(sys.modules[part.bench.__module__].__file__)))
    todo = list(files)
    while todo:
        new = _list_modules(todo.pop()) - files
        files |= new
        todo += new
    digest = hashlib.sha256(repr(part.command).encode())
    for path in sorted(files):
        digest.update(str(path.relative_to(bench.ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _list_modules(path: Path) -> set[Path]:
    """List the test modules that a file imports, or names as `module:Class`."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {match[1] for match in [_OWN_CLASS.fullmatch(node.value)] if match}
    folders = [path.parent, *(bench.TESTS / folder for folder in bench.FOLDERS)]
    paths = (folder / f"{name}.py" for folder in folders for name in names)
    return {path for path in paths if path.is_file()}


def commit() -> str:
    """The commit that is checked out."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=bench.ROOT, text=True, capture_output=True).stdout.strip()


class Ledger:
    """The file with the outcome of every trial of a part."""

    def __init__(self, folder: Path, part: bench.Part, digest: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.digest = folder / f"{part.name}.jsonl", digest
        self.form = form(part)

    def read(self) -> dict[int, dict[str, Any]]:
        """Read the outcomes of these sources and this trial, by the number of the first one."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = {}
        for line in lines:
            try:
                outcome = json.loads(line)
            except ValueError:  # the last line of a process that was killed
                continue
            if outcome["sources"] == self.digest and outcome.get("trial") == self.form:
                found[int(outcome["number"])] = outcome
        return found

    def add(self, number: int, tried: int, failed: int, problem: str, seconds: float) -> None:
        """Append the outcome of a trial, or of the trials of one call."""
        outcome = {
            "number": number,
            "tried": tried,
            "failed": failed,
            "problem": problem,
            "seconds": round(seconds, 3),
            "sources": self.digest,
            "trial": self.form,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(outcome) + "\n")


@contextmanager
def trials(part: bench.Part, folder: Path) -> Iterator[Any]:
    """Open a part; gives a function that does some trials, and says how many failed."""
    if part.bench is None:
        yield lambda first, count: bench.call(part.command, first, count)
        return
    with part.bench(folder) as trial:

        def one(first: int, count: int) -> tuple[int, int, str]:
            try:
                problem = trial(first)
            except Exception as error:  # a trial that cannot be judged has failed
                problem = f"{type(error).__name__}: {error}"
            return count, int(bool(problem)), problem

        yield one


@contextmanager
def ending_children() -> Iterator[None]:
    """When trials are interrupted, kill the processes that they have started."""
    before = set(kills.children(os.getpid()))
    try:
        yield
    except BaseException:
        started = set(kills.children(os.getpid())) - before
        for pid in started:
            kills.kill(pid)
        raise


def play(part: bench.Part, count: int, ledger: Ledger, minutes: float, share: str = "1/1") -> None:
    """Do the trials of a part that are not done yet."""
    done, begin = ledger.read(), time.monotonic()
    mine, shares = map(int, share.split("/"))
    all_of_share = range((mine - 1) * part.step, count, shares * part.step)
    missing = [number for number in all_of_share if number not in done]
    print(f"{part.name}: {len(missing)} calls to do, {len(done)} done before", flush=True)
    if not missing:
        return
    with bench.workplace() as folder, ending_children(), trials(part, folder) as call:
        for number in missing:
            if time.monotonic() - begin > 60.0 * minutes:
                print(f"{part.name}: the time is over; call it again for the rest", flush=True)
                return
            start = time.monotonic()
            tried, failed, problem = call(number, min(part.step, count - number))
            ledger.add(number, tried, failed, problem, time.monotonic() - start)
            if problem:
                print(f"{part.name}, trial {number}: {problem}", flush=True)


def summarise(part: bench.Part, count: int, ledger: Ledger) -> dict[str, Any]:
    """Count what became of a part's trials, and say of which package they were."""
    lines = [line for number, line in ledger.read().items() if number < count]
    option = f" N={count}" if count != part.trials else ""
    return {
        "promise": part.promise,
        "done": part.done,
        "trials": sum(line["tried"] for line in lines),
        "failures": sum(line["failed"] for line in lines),
        "problems": [line["problem"] for line in lines if line["problem"]][:5],
        "minutes": round(sum(line["seconds"] for line in lines) / 60.0, 1),
        "command": f"make endurance PART={part.name}{option}",
        "version": coterie.__version__,
        "commit": commit(),
        "sources": ledger.digest,
        "trial": ledger.form,
    }


def write(name: str, outcome: dict[str, Any]) -> None:
    """Put the outcome of a part into the file of outcomes."""
    outcomes = json.loads(OUTCOME.read_text()) if OUTCOME.exists() else {}
    outcomes[name] = outcome
    ordered = {part.name: outcomes[part.name] for part in parts.PARTS if part.name in outcomes}
    OUTCOME.write_text(json.dumps(ordered, indent=1) + "\n")


def main() -> None:
    """Do the parts that were asked for; exit status 1 if a trial failed."""
    names = [part.name for part in parts.PARTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(names)}")
    parser.add_argument("--trials", type=int, default=0, help="of each part; else its own number")
    parser.add_argument("--minutes", type=float, default=55.0, help="at most, for each part")
    parser.add_argument("--share", default="1/1", help="of the trials: 1/2 and 2/2 are all of them")
    parser.add_argument("--folder", type=Path, default=Path("endurance"))
    parser.add_argument("--write", action="store_true", help="write outcomes of fewer trials too")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; they are {', '.join(names)}")
    if not re.fullmatch(r"([1-9])/([1-9])", options.share) or options.share[0] > options.share[2]:
        parser.error(f"--share {options.share} is not 1/2 or the like")
    interrupts.install()  # SIGTERM is Ctrl-C, and neither is lost where a process is forked
    failures, digest = 0, sources()
    for part in parts.PARTS:
        if options.parts and part.name not in options.parts:
            continue
        count, ledger = options.trials or part.trials, Ledger(options.folder, part, digest)
        play(part, count, ledger, options.minutes, options.share)
        outcome = summarise(part, count, ledger)
        tried, failed = outcome["trials"], outcome["failures"]
        failures += failed
        print(f"{part.name}: {tried - failed} of {tried} held, {outcome['minutes']} minutes")
        if options.write or tried >= part.trials:
            write(part.name, outcome)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
