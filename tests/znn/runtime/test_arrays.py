"""What kernels cannot work on is refused before they get its address."""
import numpy as np
import pytest
import torch

from znn.codegen import target
from znn.codegen.plan import PLAIN, Epilogue
from znn.loops import Schedule, conv_backward_data, conv_backward_weights, conv_forward, matmul
from znn.runtime import conv, default, driver, dropout, pointwise, pool
from znn.runtime.kernel import Kernel

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
X, W, Y = (1, 2, 3, 8, 9), (4, 2, 1, 3, 3), (1, 4, 3, 6, 7)


def zeros(shape, dtype=F32):
    return np.zeros(shape, dtype)


def misaligned(shape):
    size = int(np.prod(shape)) * 4
    return np.zeros(size + 1, np.uint8)[1:].view(F32).reshape(shape)


def read_only(shape):
    array = zeros(shape)
    array.flags.writeable = False
    return array


BAD = [(lambda s: zeros(s).tolist(), "found list: convert it, as by np.asarray({0}, np.float32)"),
       (lambda s: torch.zeros(s), "found Tensor: convert it, as by np.asarray({0}, np.float32)"),
       (lambda s: zeros(s, np.int32), "of int32: convert it, as by {0}.astype(np.float32)"),
       (lambda s: zeros(s, ">f4"), "of >f4: convert it, as by {0}.astype(np.float32)"),
       (lambda s: zeros((*s, 2))[..., 0], "contiguous and aligned, found one that is not: copy it"),
       (misaligned, "contiguous and aligned, found one that is not: copy it, as by np.require({0}, None, 'CA')")]
PADDED = conv.padded_shape(Y, 2, F32)
POOLED, PLACES = (1, 2, 3, 7, 8), (1 + 2 * 3 * 7, 16)
DOORS = {  # by function and argument: the shape that is right, and the call
    "convolution, x": (X, lambda a: conv.forward(a, zeros(W))),
    "convolution, w": (W, lambda a: conv.forward(zeros(X), a)),
    "convolution, bias": (Y[1:2], lambda a: conv.forward(zeros(X), zeros(W), a)),
    "convolution, onto": (Y, lambda a: conv.forward(zeros(X), zeros(W), onto=a)),
    "the gradient of a convolution, x": (X, lambda a: conv.backward(a, zeros(W), None, zeros(Y))),
    "the gradient of a convolution, w": (W, lambda a: conv.backward(zeros(X), a, None, zeros(Y))),
    "the gradient of a convolution, grad": (Y, lambda a: conv.backward(zeros(X), zeros(W), None, a)),
    "the gradient of a convolution, g": (
        PADDED[0], lambda a: conv.backward_data(X, zeros(W), a, PADDED[1], Y)),
    "the gradient of an activation, y": (Y, lambda a: conv.prepared(zeros(Y), a, "relu", 2)),
    "the gradient of an activation, out": (
        PADDED[0], lambda a: pointwise.gradient(a, zeros(Y), zeros(Y), None, PADDED[1])),
    "max filter, x": (X, lambda a: pool.max_filter(a, (1, 2, 2), (1, 1, 1))),
    "the gradient of a max filter, grad": (POOLED, lambda a: pool.max_filter_gradient(
        X, np.zeros(PLACES, np.uint8), a, (1, 2, 2), (1, 1, 1))),
    "dropout, x": (X, lambda a: dropout.dropout(a, 1, 0.5)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("make, found", BAD, ids=["list", "tensor", "type", "bytes", "strides", "address"])
def test_every_door_names_the_argument_and_the_mend(door, make, found):
    what, name = door.split(", ")
    shape, call = DOORS[door]
    call(zeros(shape))
    with pytest.raises(ValueError) as error:
        call(make(shape))
    assert str(error.value).startswith(f"{what} expects {name} as an array")
    assert found.format(name) in str(error.value)


G, LEFT = zeros(PADDED[0]), PADDED[1]
WINDOW, NEAR = (1, 2, 2), (1, 1, 1)


@pytest.mark.parametrize("call, message", [
    (lambda: conv.forward(zeros(X[1:]), zeros(W)),
     "x as (n, channels, z, y, x), none of them empty, found (2, 3, 8, 9): axes that are missing have extent"),
    (lambda: conv.forward(zeros((0, *X[1:])), zeros(W)), "none of them empty, found (0, 2, 3, 8, 9)"),
    (lambda: conv.forward(zeros(X), zeros((4, 2, 3, 3))),
     "w as (out, in, kz, ky, kx), none of them empty, found (4, 2, 3, 3): a 2D kernel has kz = 1, as by w[:, :, None]"),
    (lambda: conv.forward(zeros(X), zeros((4, 3, 1, 3, 3))), "as many channels of x as w has, 3, found 2"),
    (lambda: conv.forward(zeros(X), zeros(W), dilation=(1, 4, 4)),
     "needs at least (1, 9, 9) voxels (z, y, x) for a window (1, 3, 3) with dilation (1, 4, 4), found (3, 8, 9)"),
    (lambda: conv.forward(zeros(X), zeros(W), dilation=(1, -1, 1)), "convolution: dilation must be a tuple of three"),
    (lambda: conv.forward(zeros(X), zeros(W), dilation=2), "dilation must be a tuple of three positive whole numbers"),
    (lambda: conv.forward(zeros(X), zeros(W, F64)), "w as an array of float32, found (4, 2, 1, 3, 3) of float64"),
    (lambda: conv.forward(zeros(X), zeros(W), zeros(5)), "bias as an array (4,) of float32, found (5,) of float32"),
    (lambda: conv.forward(zeros(X), zeros(W), onto=zeros((1, 4, 3, 6, 8))), "onto as an array (1, 4, 3, 6, 7) of"),
    (lambda: conv.forward(zeros(X), zeros(W), onto=read_only(Y)),
     "onto as an array (1, 4, 3, 6, 7) of float32 that may be written to, found one that is read-only"),
    (lambda: conv.forward(zeros(X), zeros(W), activation="rleu"), 'activation must be None, "relu", or a tuple of two'),
    (lambda: conv.backward(zeros(X), zeros(W), None, zeros(X)), "grad as an array (1, 4, 3, 6, 7) of float32, found"),
    (lambda: conv.backward(zeros(X), zeros(W), None, zeros(Y), activation="relu"), "y as an array (1, 4, 3, 6, 7) of"),
    (lambda: conv.backward_data(X, zeros(W), G, LEFT, X),
     "with w (4, 2, 1, 3, 3) expects a gradient (1, 4, 3, 6, 7), found (1, 2, 3, 8, 9): it is another's"),
    (lambda: conv.backward_data(X, zeros(W), zeros(Y), 0, Y),
     "g with at least (1, 4, 3, 6, 9) voxels, of which 2 zeros before and after each row, found (1, 4, 3, 6, 7) and "
     "rows that begin at 0: make it by prepared(grad, ..., reach=2)"),
    (lambda: conv.backward_weights(zeros(X), W, zeros((1, 4, 2, 7, 48)), 16, Y), "found (1, 4, 2, 7, 48)"),
    (lambda: conv.backward_weights(zeros(X), W, G.astype(F64), LEFT, Y), "g as an array of float32"),
    (lambda: pool.max_filter(zeros(X), (1, 2), NEAR), "max filter: window must be a tuple of three positive whole"),
    (lambda: pool.max_filter(zeros(X), (1, 9, 2), NEAR), "max filter needs at least (1, 9, 2) voxels (z, y, x)"),
    (lambda: pool.max_filter_with_places(zeros(X), WINDOW, (1, 0, 1)), "max filter: dilation must be a tuple of three"),
    (lambda: pool.max_filter_gradient(X, np.zeros(PLACES, np.uint8), zeros(X), WINDOW, NEAR),
     "grad as an array (1, 2, 3, 7, 8) of"),
    (lambda: pool.max_filter_gradient(X, np.zeros((43, 8), np.uint8), zeros(POOLED), WINDOW, NEAR),
     "places as an array (43, 16) of uint8, found (43, 8) of uint8"),
    (lambda: pool.max_filter_gradient(X, zeros(PLACES), zeros(POOLED), WINDOW, NEAR),
     "places as an array (43, 16) of uint8, found (43, 16) of float32: convert it"),
    (lambda: pointwise.gradient(zeros((1, 4, 3, 6, 40)), zeros(Y), zeros(Y), None, 16),
     "out with at least (1, 4, 3, 6, 23) voxels, its rows and where they begin multiples of 16, found (1, 4, 3, 6, 40"),
    (lambda: pointwise.gradient(zeros((1, 4, 3, 6, 16)), zeros(Y), zeros(Y), None, 16), "found (1, 4, 3, 6, 16) and"),
    (lambda: pointwise.gradient(zeros((1, 4, 3, 5, 32)), zeros(Y), zeros(Y), None, 16), "found (1, 4, 3, 5, 32) and"),
])
def test_shapes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


SCHEDULE = Schedule.parse("m:1 parallel, k:1, n:1 vector")


def test_a_kernel_looks_at_its_operands():
    kernel = Kernel(matmul(3, 5, 4), SCHEDULE, target.current(), F64, PLAIN, None)
    right = [zeros(s, F64) for s in ((3, 5), (3, 4), (4, 5))]
    driver.run([kernel.piece(*right)])
    for i, name in enumerate("CAB"):
        for bad, message in ((right[i][1:], f"reaches {right[i].size} elements of {name}, found {right[i][1:].size} "),
                             (right[i].astype(F32), f"{name} as an array of float64, found"),
                             (right[i].T[::-1], f"np.require({name}, None, 'CA')")):
            with pytest.raises(ValueError) as error:
                kernel.piece(*(bad if j == i else a for j, a in enumerate(right)))
            assert message in str(error.value) and "the kernel of matmul" in str(error.value)
    with pytest.raises(ValueError, match="read-only"):
        kernel.piece(np.broadcast_to(zeros((3, 5), F64), (1, 3, 5)), *right[1:])


@pytest.mark.parametrize("make", [conv_forward, conv_backward_data])
def test_a_kernel_that_packs_looks_at_what_it_packs(make):
    c = make(1, 2, 3, (2, 3, 3), (4, 9, 11), (1, 2, 1))
    where = target.current()
    schedule, epilogue = default.spatial(c, where.lanes(F32), where.registers), Epilogue(bias=c.bias is not None)
    kernel = Kernel(c, schedule, where, F32, epilogue, "before")
    w, bias = zeros(3 * 2 * 18), zeros(3) if c.bias else None
    packed = kernel.pack(w)
    out, a = (zeros((1, 3, 4, 9, 11)), zeros((1, 2, 5, 13, 13))) if c.bias else (
        zeros((1, 2, 4, 9, 11)), zeros((1, 3, 3, 5, 13)))  # the gradient, with zeros beside its rows
    kernel.piece(out, a, packed, bias)
    for call in (lambda: kernel.pack(w[1:]), lambda: kernel.piece(out, a, w[1:], bias),
                 lambda: kernel.piece(out, a.ravel()[1:], packed, bias)):
        with pytest.raises(ValueError, match=r"the kernel of conv_\w+ reaches \d+ elements of [wxg], found \d+"):
            call()
    if bias is not None:
        with pytest.raises(ValueError, match="bias as an array of float32, found NoneType"):
            kernel.piece(out, a, packed)


def test_every_copy_of_a_parallel_sum_has_room():
    c = conv_backward_weights(1, 2, 3, (1, 3, 3), (4, 9, 40))
    schedule = default.weights(c, target.current().lanes(F32), target.current().registers, 4)
    kernel = Kernel(c, schedule, target.current(), F32, PLAIN, "inside")
    x, g = zeros((1, 2, 4, 11, 42)), zeros((1, 3, 4, 9, 40))
    assert kernel.copies > 1
    kernel.piece(zeros((kernel.copies, 3, 2, 1, 3, 3)), x, g)
    with pytest.raises(ValueError, match=f"reaches {kernel.copies * 54} elements of dw, found"):
        kernel.piece(zeros((kernel.copies - 1, 3, 2, 1, 3, 3)), x, g)
