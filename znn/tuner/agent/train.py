"""Train the policy anew: measure the published training set, fit judges to it, learn an actor on them.

    python -m znn.tuner.agent.train measurements.jsonl --measure 3000

Measuring goes on where the file ends, for so many seconds; nothing else should run meanwhile.  With ``--check`` judges
that know four fifths of the problems are asked about the others instead, and nothing is written.  Learning the actor
needs the optional extra ``tune``.
"""
import argparse
import contextlib
import random
import sys
import time
from pathlib import Path

import numpy as np
import tqdm

from znn.codegen import target
from znn.tuner.agent import policy
from znn.tuner.agent.examples import examples
from znn.tuner.agent.judging import Judged, fit, judged, regret
from znn.tuner.agent.network import Judges
from znn.tuner.agent.weights import SHIPPED, UnusableWeights, save
from znn.tuner.measuring import Measurer
from znn.tuner.moves import neighbour
from znn.tuner.searches import SEARCHES, Budget, run
from znn.tuner.table import Table
from znn.tuner.workloads import published

LENGTHS = 1, 1, 2, 2, 3, 4, 6, 8  # of walks
PARENTS = 5                       # they set out from the best so many
EACH = 2                          # convolutions of a family
AROUND, SCHEDULES, PROPOSED = 60, 20, 8  # measured of a problem
JUDGES, EPOCHS = 3, 14
HELD_OUT = 5                      # one problem in so many, to check judges
PICKS = 1, 3, 5, 10
STEPS = 16                        # of an episode


def evolving(problem, rng):
    """A search that stays among good schedules: short random walks from one of the best so far."""
    known = {problem.start: (yield problem.start)}
    while True:
        schedule = rng.choice(sorted(known, key=known.get)[:PARENTS])
        for _ in range(rng.choice(LENGTHS)):
            schedule = neighbour(problem, schedule, rng)
        known[schedule] = yield schedule


def measure(table, problems, seconds, rng):
    """Measure schedules of problems that a table has few of, into the table: what is one move from the start and from
    the best of that, evolving ones, and what the policy as it is proposes, so that its successor learns where it errs
    (Ross et al., arXiv 1011.0686)."""
    wanted = [(SEARCHES["greedy 1"], AROUND), (evolving, SCHEDULES)]
    with contextlib.suppress(UnusableWeights):  # of an older observation
        policy.shipped()
        wanted.append((policy.policy, PROPOSED))
    measurer, end = Measurer(table, patience=0.1), time.monotonic() + seconds
    for problem in tqdm.tqdm(rng.sample(problems, len(problems)), "measured", disable=not seconds):
        enough = 0
        for strategy, count in wanted:
            enough += count
            left = end - time.monotonic()
            if left > 0 and len(table.of(problem)) < enough:
                for _ in run(strategy, problem, measurer.measure, Budget(count, left), rng):
                    pass


def judges_of(found):
    """Judges, fitted to examples, that differ by their seeds."""
    judges = Judges(JUDGES)
    for seed, member in enumerate(tqdm.tqdm(judges.members, "judges")):
        member.load_state_dict(fit(found, EPOCHS, seed).state_dict())
    return judges.eval()


def check(found):
    """Print how far behind the best known a problem's first schedules by judgement are, for problems held out."""
    groups = np.random.default_rng(0).permutation(np.unique(found.group))
    few = len(groups) // HELD_OUT
    if not few:
        sys.exit(f"error: expected measurements of at least {HELD_OUT} problems, to hold one in {HELD_OUT} out, found "
                 f"{len(groups)}: measure more with --measure 3000")
    held_out, judges = found.of(groups[:few]), judges_of(found.of(groups[few:]))
    judgements, default = judged(judges, held_out.observations), held_out.start == np.arange(len(held_out.start))
    print(f"{few} problems held out; log time behind the best known, mean: the start {regret(held_out, default):.3f}, "
          + ", ".join(f"the best of the first {n} {regret(held_out, judgements, n):.3f}" for n in PICKS))


def main(arguments=None):
    """Measure, fit, learn and write, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, help="measurements, as JSON lines; made if there are none")
    parser.add_argument("--measure", type=float, default=0, metavar="SECONDS", help="how long to measure first")
    parser.add_argument("--steps", type=int, default=60_000, help="actions to learn from (%(default)s)")
    parser.add_argument("--algorithm", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--curve", type=Path, help="write steps and mean gains of episodes there, as CSV")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="where the policy goes (%(default)s)")
    parser.add_argument("--check", action="store_true", help="only say what judges make of problems held out")
    chosen = parser.parse_args(arguments)
    if not chosen.check:
        try:  # before anything takes its time
            from znn.tuner.agent import learning
            from znn.tuner.environment import TuningEnv
        except ImportError as error:
            sys.exit(f"error: training a policy needs the extra 'tune' ({error}); pip install 'znn[tune]'")
    table = Table(chosen.table)
    problems = [w.problem for w in published("train", target.current(), each=EACH)]
    with contextlib.suppress(KeyboardInterrupt):
        measure(table, problems, chosen.measure, random.Random())
    problems = [p for p in problems if table.get(p, p.start)]
    if not problems:
        sys.exit(f"error: {chosen.table} has no measurements of the training set on this processor with this version; "
                 "measure some with --measure 3000")
    found = examples(table, problems)
    if chosen.check:
        return check(found)
    judges = judges_of(found)
    measured = Judged(judges, table)
    callback = learning.Curve()
    actor = getattr(learning, chosen.algorithm)([lambda: TuningEnv(problems, measured, STEPS)], chosen.steps,
                                                reader=judges.members[0].reader.state_dict(), callback=callback)
    save(chosen.out, judges, actor)
    if chosen.curve:
        chosen.curve.write_text("steps,gain\n" + "".join(f"{s},{g:.5f}\n" for s, g in callback.points))
    print(f"written: {chosen.out}, learned on {len(table)} measurements of {len(problems)} problems")


if __name__ == "__main__":
    main()
