"""How much main memory this process takes, and what it takes beside the blocks that it computes."""
import resource
import sys

GB = 1 << 30
RESERVE = 96 << 20  # bytes for what is neither network nor block: HDF5's chunks, a section's statistics, new kernels


def peak_memory():
    """Most bytes of main memory that this process has held at one time (its peak resident set)."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    # On Linux this would also count what the parent held when it started this process.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_now():
    """Bytes of main memory that this process holds now; where the system does not say, its peak."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_memory()
