"""Kernels as LLVM IR, compiled to machine code at run time for the processor at hand."""
