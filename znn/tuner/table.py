"""What was measured, as JSON lines: measuring can be replayed, and an environment on a table is deterministic."""
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """How long a schedule takes.

    Attributes
    ----------
    seconds : float
        Of a run; infinite if it failed.
    share : float
        Of what the processor can do at best; 0 if it failed.
    spread : float
        Relative standard error of the median.
    failure : str
        Why there is no time, empty if there is one.
    """

    seconds: float = math.inf
    share: float = 0.0
    spread: float = 0.0
    failure: str = ""


class Unmeasured(LookupError):
    """A table was asked for what nobody measured."""


class Table:
    """Results by problem and schedule, in memory and, if there is a path, in a file that every result is added to.

    A line of the file is an object with the problem's key, the schedule's text and the result.  The last line of a
    writer that was killed is left out; of two results of a schedule the later one counts.

    Parameters
    ----------
    path : path-like, optional

    Raises
    ------
    ValueError
        If a line of the file is not a result.
    """

    def __init__(self, path=None):
        self.path, self._results = path and Path(path), {}
        if self.path and self.path.exists():
            self._read()

    def __len__(self):
        return len(self._results)

    def get(self, problem, schedule):
        """The result of a schedule, None if there is none."""
        return self._results.get((problem.key, str(schedule)))

    def measure(self, problem, schedule):
        """The result of a schedule, as a `Measurer` gives it, but only from the table.

        Raises
        ------
        Unmeasured
            If there is none.
        """
        found = self.get(problem, schedule)
        if found is None:
            raise Unmeasured(f"{self.path or 'the table'} has no time of {schedule} for {problem.key}")
        return found

    def of(self, problem):
        """The results of a problem by the text of their schedules."""
        key = problem.key
        return {text: result for (of, text), result in self._results.items() if of == key}

    def add(self, problem, schedule, result):
        """Keep a result."""
        self._results[problem.key, str(schedule)] = result
        if self.path:
            entry = {"problem": problem.key, "schedule": str(schedule), **asdict(result)}
            entry["seconds"] = None if result.failure else result.seconds
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def _read(self):
        text = self.path.read_text(encoding="utf-8")
        whole = text[:text.rfind("\n") + 1]
        if whole != text:  # what follows must not continue half a line
            self.path.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                if entry["seconds"] is None:
                    entry["seconds"] = math.inf
                key = entry.pop("problem"), entry.pop("schedule")
                self._results[key] = Result(**entry)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}, line {number}: not a result of measuring ({error!r})") from error
