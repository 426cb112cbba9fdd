"""Dense inference of a network by other engines, for network.py: each maker gives a function of the input.

A maker takes a network, an input (1, channels, z, y, x) and a number of threads; its function computes the logits of
inputs of that shape as an array or tensor.  What is not installed is an ImportError.
"""
import copy
import functools
import logging
import tempfile
from pathlib import Path

import torch
from fragments import Fragments

LAYOUTS = {"": torch.contiguous_format, " channels-last": torch.channels_last_3d}


def _torch(form, layout, dtype=torch.float32, prepare=lambda net: net):
    def make(net, x, threads):
        own = form(net).eval().to(dtype=dtype, memory_format=layout)
        own = prepare(own)

        def call(x):
            with torch.inference_mode():
                return own(x.to(dtype=dtype, memory_format=layout)).float()

        return call

    return make


def _onnxruntime(net, x, threads):
    import onnx  # noqa: F401  that torch writes the file with
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        torch.onnx.export(Fragments(net).eval(), (x,), path, dynamo=False, input_names=["x"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x.numpy()})[0]


def _openvino(precision):
    def make(net, x, threads):
        import openvino

        model = openvino.convert_model(Fragments(net).eval(), example_input=x, input=[list(x.shape)])
        if precision == "int8":
            import nncf

            logging.getLogger("nncf").setLevel(logging.ERROR)  # that one sample is few
            model = nncf.quantize(model, nncf.Dataset([x.numpy()]))
        settings = {"INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32", "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_NUM_THREADS": threads}
        request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
        return lambda x: request.infer([x.numpy()])[0].copy()

    return make


PEERS = {
    **{f"torch dilated{name}": _torch(copy.deepcopy, layout) for name, layout in LAYOUTS.items()},
    **{f"torch fragments{name}": _torch(Fragments, layout) for name, layout in LAYOUTS.items()},
    "torch.compile": _torch(Fragments, torch.channels_last_3d, prepare=functools.partial(torch.compile, dynamic=False)),
    "torch bf16": _torch(Fragments, torch.channels_last_3d, torch.bfloat16),
    "onnxruntime": _onnxruntime,
    **{f"openvino {precision}": _openvino(precision) for precision in ("f32", "bf16", "int8")},
}
