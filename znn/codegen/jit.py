"""LLVM IR to machine code: one call, a few tens of milliseconds; and machine code to something that can be called."""
import llvmlite.binding as llvm

from znn.codegen.target import available

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

_keep = []  # machine code lives as long as its engine does


def processor(target):
    """LLVM's name and features of the processor that code for `target` is made for."""
    if target.cpu == "host":
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return target.cpu, ",".join(f"+{f}" for f in target.needs)


def object_code(module, target):
    """The object file, as bytes, of an llvmlite module that defines the function ``kernel``.

    Raises
    ------
    RuntimeError
        From LLVM, when the IR is not valid.
    """
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return _machine(target).emit_object(parsed)


def link(code, target):
    """Load an object file into this process for good; the address of its function ``kernel``."""
    engine = load(code, target)
    _keep.append(engine)
    return engine.get_function_address("kernel")


def load(code, target):
    """An LLVM engine with an object file; its code is there as long as the engine is."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def assembly(module, target):
    """The machine code of a module as assembly text, to read; also for a processor that is not at hand.

    Raises
    ------
    RuntimeError
        If this LLVM knows no such processor.
    """
    machine = _machine(target) if target.name in available() else _example(target)
    return machine.emit_assembly(llvm.parse_assembly(str(module)))


def _machine(target):
    cpu, features = processor(target)
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


def _example(target):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(cpu=target.example, opt=3)
