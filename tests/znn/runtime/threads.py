"""The same work on one thread and on all."""
import numba


def for_one_thread_and_all(work):
    """What `work()` returns on one of numba's threads, and on as many as it is set to."""
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = work()
    finally:
        numba.set_num_threads(threads)
    return one, work()
