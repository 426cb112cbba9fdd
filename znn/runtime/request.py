"""What convolutions ask for: a kernel for a contraction, under the schedule that was found for it or its rule's."""
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from znn.codegen.group import Group
from znn.codegen.plan import PLAIN, Epilogue
from znn.codegen.target import Target
from znn.loops import Contraction, Schedule
from znn.runtime.database import schedule_for
from znn.runtime.kernel import kernel


@dataclass(frozen=True)
class Request:
    """A kernel before its schedule is chosen.

    Attributes
    ----------
    contraction : Contraction
    rule : callable
        ``rule(contraction, lanes, registers)`` is the schedule where none is stored.
    where : Target
    dtype : numpy.dtype or Group
    packed : {"before", "inside"}
        As for `Plan`.
    epilogue : Epilogue
    task : str or None
        The dimension of which every index is one task, since the caller runs tasks by its index; None where the
        caller runs all.
    """

    contraction: Contraction
    rule: Callable
    where: Target
    dtype: np.dtype | Group
    packed: str
    epilogue: Epilogue = PLAIN
    task: str | None = None

    def default(self) -> Schedule:
        """The rule's schedule."""
        return self.rule(self.contraction, self.where.lanes(self.dtype), self.where.registers)

    def kernel(self):
        """The kernel, under the schedule stored for the contraction, else under the rule's."""
        schedule = schedule_for(self.contraction, self.rule, self.where, self.dtype, self.packed, self.task,
                                self.epilogue.stores)
        return kernel(self.contraction, schedule, self.dtype, self.epilogue, packed=self.packed)
