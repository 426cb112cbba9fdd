"""The published variants: what to build for each, what must come out, and where they differ.

`python -m models.variants` prints the table of docs/networks.md.
"""
from dataclasses import dataclass, field

ZNN1, ZNN4, PAPER = "ZNN v1", "ZNN v4", "arXiv 1508.04843"


@dataclass(frozen=True)
class Variant:
    """A published network: `models.build(model, options)` gives it with `parameters` and `field_of_view` (z, y, x)."""

    title: str
    model: str
    options: dict = field(hash=False)
    parameters: int
    field_of_view: tuple
    activation: str
    initialisation: str
    origin: str


N4_FOV, VD2D_FOV, VD2D3D_FOV = (1, 95, 95), (1, 109, 109), (5, 85, 85)
BEFORE_POOL = "tanh before pooling, else ReLU"
VARIANTS = (
    Variant("N4", "N4", {"activation": "tanh"}, 219_290, N4_FOV,
            "tanh", "uniform 0.05", f"{PAPER}; N4.spec of {ZNN1}"),
    Variant("N4, ReLU", "N4", {"activation": "relu"}, 219_290, N4_FOV,
            "ReLU", "xavier", f"N4_relu of {ZNN4}"),
    Variant("N4-R", "N4", {"activation": "tanh", "recursive": True, "init": "xavier"}, 220_058, N4_FOV,
            "tanh", "xavier", f"N4-R.spec of {ZNN1}"),
    Variant("VD2D", "VD2D", {"activation": "tanh"}, 230_714, VD2D_FOV,
            BEFORE_POOL, "uniform 0.05; xavier in conv1c, 2b, 3b", f"{PAPER}; VD2D_tanh of {ZNN4}"),
    Variant("VD2D, ReLU", "VD2D", {"activation": "relu"}, 230_714, VD2D_FOV,
            "ReLU", "msra", f"VD2D of {ZNN4}"),
    Variant("VD2D3D", "VD2D3D", {"activation": "tanh", "recursive": True}, 296_486, VD2D3D_FOV,
            BEFORE_POOL, "msra", f"{PAPER}; VD2D3D_tanh of {ZNN4}"),
    Variant("VD2D3D, ReLU", "VD2D3D", {"activation": "relu", "recursive": True}, 296_486, VD2D3D_FOV,
            "ReLU", "msra", f"VD2D3D of {ZNN4}"),
    Variant("VD2D3D, plain", "VD2D3D", {"activation": "relu"}, 288_734, VD2D3D_FOV,
            "ReLU", "msra", "the same without the map's stream"),
)


def as_markdown(variants=VARIANTS):
    """The variants as a table in Markdown."""
    heads = ("network", "`models.build`", "parameters", "field of view (zyx)", "activation", "initialisation", "from")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for v in variants:
        fov = " x ".join(map(str, v.field_of_view))
        rows.append(f"| {v.title} | `{v.model!r}, {v.options}` | {v.parameters:,} | {fov} "
                    f"| {v.activation} | {v.initialisation} | {v.origin} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(as_markdown())
