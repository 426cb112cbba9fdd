"""What each kind of processor offers to the generator, as data; the best one is chosen at run time.

``ZNN_TARGET=avx2`` in the environment, or `use_target`, forces another: for tests, and for comparing.
"""
import contextlib
import contextvars
import ctypes
import functools
import os
import platform
import sys
from dataclasses import dataclass

import llvmlite.binding as llvm


@dataclass(frozen=True)
class Instruction:
    """What some processors of a kind do in one instruction, and others in several.

    Attributes
    ----------
    name : str
        Who asks for it, as `znn.codegen.group` does for "dot bf16", "round bf16" and "dot u8".
    lanes : int
        Elements of its vectors, 32 bits each.
    intrinsic : str
        LLVM's name of it.
    feature : str
        LLVM feature that the processor must have.
    """

    name: str
    lanes: int
    intrinsic: str
    feature: str


@dataclass(frozen=True)
class Target:
    """A vector unit.

    Attributes
    ----------
    name : str
    bits : int
        Width of a vector register.
    registers : int
        Vector registers that a kernel may name.
    needs : tuple of str
        LLVM features the processor must have.
    cpu : str
        LLVM processor name to compile for; "host" means the machine at hand with all its features.
    triple, example : str
        LLVM machine and processor name to write assembly for where no such processor is at hand.
    instructions : tuple of Instruction
        That some of these processors have; kernels do without where the one at hand lacks them.
    """

    name: str
    bits: int
    registers: int
    needs: tuple
    cpu: str
    triple: str
    example: str
    instructions: tuple = ()

    def lanes(self, dtype):
        """Elements of numpy dtype `dtype` in one register."""
        return self.bits // (8 * dtype.itemsize)

    def instruction(self, name, lanes):
        """LLVM's name of an instruction for vectors of so many lanes; None where the processor at hand has none."""
        if self.cpu != "host" or self.name not in available():
            return None
        has = _features()
        return next((i.intrinsic for i in self.instructions if (i.name, i.lanes) == (name, lanes)
                     and has.get(i.feature, False)), None)


def _for_widths(name, intrinsic, feature):
    """An instruction of AVX-512 for its three widths of vectors, whose bits end its name."""
    return tuple(Instruction(name, bits // 32, f"{intrinsic}.{bits}", feature) for bits in (512, 256, 128))


_MATRIX_UNIT = tuple(Instruction(name, 16, f"llvm.x86.{intrinsic}", feature) for name, intrinsic, feature in (
    ("configure registers", "ldtilecfg", "amx-tile"), ("release registers", "tilerelease", "amx-tile"),
    ("zero register", "tilezero", "amx-tile"), ("load register", "tileloadd64", "amx-tile"),
    ("store register", "tilestored64", "amx-tile"), ("multiply bf16", "tdpbf16ps", "amx-bf16"),
    ("multiply u8", "tdpbsud", "amx-int8")))  # of signed weights and unsigned values

TARGETS = {t.name: t for t in (
    Target("avx512", 512, 32, ("avx512f", "avx512vl", "avx512dq", "avx512bw"), "host",
           "x86_64-linux-gnu", "skylake-avx512",
           (*_for_widths("dot bf16", "llvm.x86.avx512bf16.dpbf16ps", "avx512bf16"),
            *_for_widths("round bf16", "llvm.x86.avx512bf16.cvtne2ps2bf16", "avx512bf16"),
            *_for_widths("dot u8", "llvm.x86.avx512.vpdpbusd", "avx512vnni"), *_MATRIX_UNIT)),
    Target("avx2", 256, 16, ("avx2", "fma"), "haswell", "x86_64-linux-gnu", "haswell"),
    Target("neon", 128, 32, ("neon",), "host", "aarch64-linux-gnu", "neoverse-n1"),
    Target("generic", 128, 16, (), "", "", ""),
)}

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # Linux, Documentation/arch/x86/xstate.rst

_forced = contextvars.ContextVar("forced target", default=None)


@functools.cache
def _features():
    """LLVM's features of the processor at hand, and whether it has them and may use them."""
    granted = _matrix_unit_granted()
    return {f: has and (granted or not f.startswith("amx-")) for f, has in llvm.get_host_cpu_features().items()}


def _matrix_unit_granted():
    """Ask Linux for the registers of AMX, which are large and no process has unless it asks; threads have them too."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


@functools.cache
def available():
    """Names of the targets that this processor can run, best first."""
    has = _features()
    return [t.name for t in TARGETS.values() if all(has.get(f, False) for f in t.needs)]


def current():
    """The target kernels are generated for: forced by `use_target` or ZNN_TARGET, else the best available.

    Raises
    ------
    ValueError
        If the forced one is unknown, or this processor lacks it.
    """
    name = _forced.get() or os.environ.get("ZNN_TARGET")
    names = available()
    if name and name not in names:
        raise ValueError(f"target {name!r} cannot run here: this processor offers {', '.join(names)}")
    return TARGETS[name or names[0]]


@contextlib.contextmanager
def use_target(name):
    """Within the block, generate kernels for the named target; other threads go on with theirs."""
    before = _forced.set(name)
    try:
        yield current()
    finally:
        _forced.reset(before)
