"""The searches that a policy is compared with; `run` says what a search is.

All set out from the problem's start, which the default rule made, and take the steps of `moves.neighbours`.
"""
import math

from znn.tuner.moves import neighbour, neighbours

STEPS = 16         # of a random walk, at most
HOT, COLD = 0.3, 0.01  # temperatures of annealing: a schedule that takes so much longer is often, hardly ever accepted
COOLING = 0.97     # from one schedule to the next


def default(problem, rng):
    """The default rule's schedule and nothing else."""
    yield problem.start


def random(problem, rng):
    """Ends of random walks of random lengths."""
    yield problem.start
    while True:
        yield random_walk(problem, rng)


def random_walk(problem, rng):
    """The end of a random walk of a random length."""
    schedule = problem.start
    for _ in range(rng.randint(1, STEPS)):
        schedule = neighbour(problem, schedule, rng)
    return schedule


def greedy(problem, rng, depth):
    """Steepest descent: of all that up to `depth` moves lead to, go to the best, until nothing is better."""
    here = problem.start
    best = yield here
    while True:
        found = yield from _timed(_within(problem, here, depth, rng))
        if not found or min(found)[0] >= best:
            return
        best, _, here = min(found)


def beam(problem, rng, width):
    """Of all that one move from the beam leads to, the best `width` that are new make the next beam."""
    yield problem.start
    frontier, seen = [problem.start], {problem.start}
    while frontier:
        level = [s for here in frontier for s in _shuffled(neighbours(problem, here), rng)]
        level = [s for s in dict.fromkeys(level) if s not in seen]
        seen.update(level)
        found = yield from _timed(level)
        frontier = [schedule for _, _, schedule in sorted(found)[:width]]


def annealing(problem, rng):
    """Simulated annealing on the logarithm of the time, one random move at a time; it heats up again when cold."""
    here = best = problem.start
    energy = least = math.log((yield here))
    heat = HOT
    while True:
        there = neighbour(problem, here, rng)
        found = math.log((yield there))
        if found <= energy or rng.random() < math.exp((energy - found) / heat):
            here, energy = there, found
        if energy < least:
            best, least = here, energy
        heat *= COOLING
        if heat < COLD:
            here, energy, heat = best, least, HOT


def exhaustive(problem, rng):
    """Everything that moves lead to, nearest first; it ends only where the space is small."""
    seen = {problem.start: None}
    for here in (queue := [problem.start]):
        yield here
        new = [s for s in neighbours(problem, here) if s not in seen]
        seen.update(dict.fromkeys(new))
        queue.extend(new)


def _timed(schedules):
    """(seconds, number, schedule) of those that have a time; sorts by time, then as they came."""
    found = []
    for number, schedule in enumerate(schedules):
        seconds = yield schedule
        if seconds < math.inf:
            found.append((seconds, number, schedule))
    return found


def _within(problem, schedule, depth, rng):
    """Schedules that up to `depth` moves lead to, nearest first, else in random order, each once."""
    seen, level = {schedule}, [schedule]
    for _ in range(depth):
        following = []
        for here in level:
            for there in _shuffled(neighbours(problem, here), rng):
                if there not in seen:
                    seen.add(there)
                    following.append(there)
                    yield there
        level = following


def _shuffled(items, rng):
    return rng.sample(items, len(items))
