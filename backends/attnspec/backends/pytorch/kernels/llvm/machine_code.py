"""Machine code of kernels for this processor, compiled by LLVM in memory."""

import ctypes
from functools import lru_cache
from typing import Generic, TypeVar

import llvmlite.binding as llvm

A = TypeVar("A")


@lru_cache(maxsize=1)
def processor() -> tuple[str, llvm.FeatureMap]:
    """Name and features of this processor; LLVM takes milliseconds to detect them."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features()


@lru_cache(maxsize=1)
def register_bytes() -> int:
    """Width in bytes of the widest vector register of this machine."""
    _, features = processor()
    if features.get("avx512f") and features.get("avx512bw") and features.get("avx512vl"):
        return 64
    return 32 if features.get("avx2") else 16


HAS_512_BITS = register_bytes() == 64
"""True if registers are those of AVX-512, twice as many as with AVX2."""


IS_X86 = llvm.get_process_triple().startswith(("x86_64-", "amd64-"))


@lru_cache(maxsize=1)
def is_zen() -> bool:
    """Return whether this is an AMD Zen processor: PyTorch's matrix library is not tuned for it."""
    return processor()[0].startswith("znver")


@lru_cache(maxsize=1)
def splits_512_bits() -> bool:
    """Return whether this is Zen 4, which computes 512-bit registers in two halves."""
    return processor()[0] == "znver4"


@lru_cache(maxsize=1)
def multiplies_bfloat16() -> bool:
    """Return whether an instruction adds two bfloat16 products to each lane of float32."""
    return HAS_512_BITS and bool(processor()[1].get("avx512bf16"))


def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # vectors are written at the machine's full width; without this some targets split them in halves
    cpu, features = processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features.flatten() + ",-prefer-256-bit", opt=3, jit=True)


def object_file(assembly: str) -> bytes:
    """The machine code of a module in LLVM's assembly language, for this processor."""
    machine = _machine()
    module = llvm.parse_assembly(assembly)
    module.verify()
    # only move variables into registers: other passes take twice as long as all else, and find nothing to do here
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return bytes(machine.emit_object(module))


class Compiled(Generic[A]):
    """A kernel in machine code; ``call`` takes the address of its argument buffer."""

    def __init__(self, name: str, code: bytes) -> None:
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        self.address = self.engine.get_function_address(name)
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)
