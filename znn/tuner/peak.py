"""What the processor can do at best: multiplications and additions in registers alone, on all threads."""
import numpy as np

from znn.codegen import jit, target
from znn.codegen.emit import I64, Emitter
from znn.runtime import driver


def peak(threads, accumulators=24, steps=100_000, dtype=np.float32):
    """A function that multiplies and adds in registers on all threads, and how many operations it does.

    Parameters
    ----------
    threads : int
        For which there is work; it is divided into eight tasks for each.
    accumulators : int
        Registers in use, as far as the processor has them.
    steps : int
        Of each task.
    dtype : numpy.dtype

    Returns
    -------
    run : callable
    operations : int
    """
    where, dtype = target.current(), np.dtype(dtype)
    e = Emitter(where, dtype, "ppppii")
    held = min(accumulators, where.registers - 3)
    one = e.broadcast(e.fn.args[1])

    def task(i):
        acc = e.loop(I64(steps), [one] * held, lambda i, *acc: [e.fma(one, v, one) for v in acc])
        for v in acc[1:]:
            acc[0] = e.b.fadd(acc[0], v)
        e.store(acc[0], e.fn.args[0])
        return []

    first, last = e.fn.args[4:]
    e.loop(e.b.sub(last, first), [], task, first)
    e.b.ret_void()
    address = jit.link(jit.object_code(e.module, where), where)
    memory, tasks = np.ones(64, dtype), 8 * threads
    piece = (address, *[memory.ctypes.data] * 4, tasks)
    return lambda memory=memory: driver.run([piece]), 2 * held * steps * e.lanes * tasks
