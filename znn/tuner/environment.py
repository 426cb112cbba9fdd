"""Tuning as a game, for gymnasium: move a cursor, change the schedule at it, gain share of the processor's peak.

Needs the optional extra ``tune``.  Given a table that holds all that is asked for (``measure=table.measure``), episodes
are deterministic.
"""
import gymnasium
import numpy as np

from znn.tuner.moves import ACTIONS, State, act, mask
from znn.tuner.nestgraph import SPACE, nest_graph
from znn.tuner.observation import LARGEST, SIZE, observe
from znn.tuner.problem import Problem

STEPS = 32  # of an episode
FORMS = {"flat": (gymnasium.spaces.Box(0, LARGEST, (SIZE,), np.float32), observe), "graph": (SPACE, nest_graph)}


class TuningEnv(gymnasium.Env):
    """An episode is a problem and so many actions on its schedule.

    The observation is that of `observation.observe`, or the graph of `nestgraph.nest_graph`; action i is
    ``moves.ACTIONS[i]``; the reward is the gain in share of the peak, 0 for moves of the cursor.  An illegal action
    changes nothing and costs its step.  An episode is truncated after its steps, and terminated where no action is
    legal.

    Parameters
    ----------
    problems : sequence of Problem
    measure : callable
        ``measure(problem, schedule)`` is a `Result`: of a `Measurer`, or of a `Table` to replay it.
    steps : int
    start : callable, optional
        ``start(problem)`` is the schedule that an episode begins with; the problem's own unless given.
    form : {"flat", "graph"}
        Of the observation.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012, as gymnasium has it

    def __init__(self, problems, measure, steps=STEPS, start=lambda problem: problem.start, form="flat",
                 render_mode=None):
        self.observation_space, self._observe = FORMS[form]
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.problems, self.measure, self.steps, self.start = list(problems), measure, steps, start
        self.render_mode = render_mode
        self.state = self._result = self._mask = None
        self._taken = 0

    def reset(self, *, seed=None, options=None):
        """Begin with a problem: ``options["problem"]``, a `Problem` or its number, else one by chance."""
        super().reset(seed=seed)
        chosen = (options or {}).get("problem")
        if chosen is None:
            chosen = int(self.np_random.integers(len(self.problems)))
        problem = chosen if isinstance(chosen, Problem) else self.problems[chosen]
        self._taken = 0
        self._enter(State(problem, self.start(problem)))
        return self._observe(self.state), self._info()

    def step(self, action):
        """Act; see the class for what comes back.  `info` has the schedule, its seconds and share, and any failure."""
        before = self._result.share
        if self._mask[action]:
            self._enter(act(self.state, ACTIONS[action]))
        self._taken += 1
        return (self._observe(self.state), self._result.share - before, not self._mask.any(), self._taken >= self.steps,
                self._info())

    def action_masks(self):
        """Which actions are legal, as sb3-contrib's masked policies ask; bool, (len(ACTIONS),)."""
        return self._mask

    def render(self):
        """The schedule, the loop at the cursor in brackets, and its share of the peak."""
        if self.render_mode != "ansi":
            return None
        loops = list(map(str, self.state.schedule.loops))
        loops[self.state.cursor:self.state.cursor + 1] = [f"[{loop}]" for loop in loops[self.state.cursor:][:1]]
        return f"{', '.join(loops)}: {self._result.share:.3f}"

    def _enter(self, state):
        self.state, self._mask = state, mask(state)
        self._result = self.measure(state.problem, state.schedule)

    def _info(self):
        result = self._result
        return {"schedule": str(self.state.schedule), "seconds": result.seconds, "share": result.share,
                "failure": result.failure}
