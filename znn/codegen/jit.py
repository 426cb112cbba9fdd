"""LLVM IR to machine code: one call, a few tens of milliseconds."""
import llvmlite.binding as llvm

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

_keep = []  # machine code lives as long as its engine does


def _machine(target):
    if target.cpu == "host":
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    else:
        cpu, features = target.cpu, ",".join(f"+{f}" for f in target.needs)
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


def compile_kernel(module, target):
    """Compile an llvmlite module that defines one function; return the function's address.

    Raises
    ------
    RuntimeError
        From LLVM, when the IR is not valid.
    """
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    name = next(f.name for f in parsed.functions if not f.is_declaration)
    engine = llvm.create_mcjit_compiler(parsed, _machine(target))
    engine.finalize_object()
    _keep.append(engine)
    return engine.get_function_address(name)


def assembly(module, target):
    """The machine code of a module as assembly text, to read."""
    return _machine(target).emit_assembly(llvm.parse_assembly(str(module)))
