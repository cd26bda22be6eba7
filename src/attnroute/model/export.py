"""A router as the graphs of a bundle, compared with torch before anybody gets them.

Exporting takes seconds to a minute, so it is done once per shape of the network (`export_graphs`);
each later model is the same graphs with other numbers in them (`with_weights`). Both ways end in
`parity`: whatever the exporter or the optimiser did, what comes out of onnxruntime is what torch
says, over random and edge shapes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import nn

from attnroute.bundle import GRAPHS, OPSET, Bundle, Manifest, Probe
from attnroute.errors import AttnrouteError
from attnroute.features.schema import (
    CLASS_FEATURES,
    ENDPOINT_FEATURES,
    PAIR_FEATURES,
    schema_hash,
)
from attnroute.model.network import Router, RouterConfig

__all__ = [
    "PARITY",
    "ExportError",
    "bundle_of",
    "export_graphs",
    "graph_runner",
    "parity",
    "random_inputs",
    "rank_agreement",
    "router_of",
    "run_graphs",
    "torch_outputs",
    "with_int8",
    "with_weights",
]

Graphs = Mapping[str, bytes]
Tensors = Mapping[str, npt.NDArray[np.float32]]

PARITY = 1e-5
"""How far onnxruntime may be from torch, relative to values above 1 and absolute below."""
RANKS_MIN = 0.97
"""Share of the classes whose fastest endpoint int8 must leave within 5 % of the fastest."""
_SHAPES = ((1, 1), (1, 5), (7, 1), (4, 12), (48, 30), (3, 1000))
"""Classes and endpoints of the comparison."""
_MASKED = "but_one"


class ExportError(AttnrouteError):
    """A model that cannot become a bundle."""


def _modules(router: Router) -> dict[str, nn.Module]:
    return {
        "encode_endpoints.onnx": router.encode_endpoints,
        "encode_classes.onnx": router.encode_classes,
        "score.onnx": router.score,
    }


def export_graphs(router: Router) -> dict[str, bytes]:
    """The three graphs of a router, compared with torch. Raises ExportError."""
    # A constant that is 0 or 1 would be folded away, and with it the place for later numbers.
    generic = Router(router.config)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for value in [*generic.parameters(), *generic.buffers()]:
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
    inputs = {name: torch.from_numpy(v) for name, v in random_inputs(4, 6, seed=0).items()}
    with torch.no_grad():
        inputs["key"], inputs["value"] = generic.encode_endpoints(inputs["endpoint"])
        inputs["query"] = generic.encode_classes(inputs["request_class"])
    graphs = {
        name: _export(module.eval(), name, inputs) for name, module in _modules(generic).items()
    }
    return with_weights(graphs, router)


_AXES: Mapping[str, tuple[str, ...]] = {
    "endpoint": ("E",),
    "request_class": ("C",),
    "query": ("C",),
    "key": ("E",),
    "value": ("E",),
    "pair": ("C", "E"),
    "table_cost_s": ("C", "E"),
    "rtt_s": ("E",),
    "mask": ("E",),
}


def _export(module: nn.Module, name: str, inputs: Mapping[str, torch.Tensor]) -> bytes:
    takes, gives = GRAPHS[name]
    sizes = {axis: torch.export.Dim(axis, min=1, max=1 << 20) for axis in ("C", "E")}
    shapes = {one: {i: sizes[axis] for i, axis in enumerate(_AXES[one])} for one in takes}
    # The exporter talks of packages that it does not need.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        # That two axes have one name is what is wanted here.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            tuple(inputs[one] for one in takes),
            dynamo=True,
            opset_version=OPSET,
            external_data=False,
            dynamic_shapes=shapes,
            input_names=list(takes),
            output_names=list(gives),
            verbose=False,
        )
    assert program is not None, "with dynamo there is a program"
    model = program.model_proto
    found = {one.domain: one.version for one in model.opset_import}
    if found.get("") != OPSET:
        raise ExportError(f"`{name}` came out with opset {found}, expected {OPSET}")
    del model.metadata_props[:], model.graph.metadata_props[:]
    for node in model.graph.node:
        # Where in which file a node came from: of no use to a sidecar, and most of the size.
        del node.metadata_props[:]
        node.doc_string = ""
    return bytes(model.SerializeToString())


def with_weights(graphs: Graphs, router: Router) -> dict[str, bytes]:
    """The same graphs with this router's numbers, compared with torch.

    Raises ExportError where a number has no place or parity is lost.
    """
    made: dict[str, bytes] = {}
    for name, module in _modules(router).items():
        model = onnx.load_from_string(graphs[name])
        places = {one.name: one for one in model.graph.initializer}
        for key, value in module.state_dict().items():
            place = places.get(key)
            if place is None or tuple(place.dims) != tuple(value.shape):
                raise ExportError(
                    f"`{name}` has no place for `{key}` of shape {tuple(value.shape)}; export the "
                    "graphs anew"
                )
            place.CopyFrom(onnx.numpy_helper.from_array(value.detach().numpy(), key))
        made[name] = bytes(model.SerializeToString())
    worst = parity(made, router)
    if not worst <= PARITY:
        raise ExportError(f"onnxruntime is {worst:.2e} away from torch, at most {PARITY:.0e}")
    return made


def router_of(bundle: Bundle) -> Router:
    """The router whose numbers a bundle has, to train on from there.

    Raises ExportError where the bundle is of another network than this build's.
    """
    where = f"{bundle.manifest.name}/{bundle.manifest.version}"
    shape = bundle.manifest.trained.get("shape")
    try:
        router = Router(RouterConfig(**shape))  # type: ignore[arg-type]
    except TypeError:
        raise ExportError(
            f"`{where}` does not say the shape of its network; train from another bundle"
        ) from None
    for name, module in _modules(router).items():
        model = onnx.load_from_string(bundle.graphs[name])
        found = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
        state = {
            key: torch.from_numpy(found[key].copy()) for key in module.state_dict() if key in found
        }
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise ExportError(f"`{where}`: `{name}` is of another network: {error}") from error
    return router


def _session(graph: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def graph_runner(graph: bytes) -> Callable[[Tensors], list[npt.NDArray[np.float32]]]:
    """One graph alone: inputs by name in, outputs in order out."""
    session = _session(graph)

    def run(inputs: Tensors) -> list[npt.NDArray[np.float32]]:
        return list(session.run(None, dict(inputs)))

    return run


class _Runner:
    def __init__(self, graphs: Graphs) -> None:
        self._sessions = {name: _session(graphs[name]) for name in GRAPHS}

    def __call__(self, inputs: Tensors) -> dict[str, npt.NDArray[np.float32]]:
        known = dict(inputs)
        for name, (takes, gives) in GRAPHS.items():
            out = self._sessions[name].run(list(gives), {one: known[one] for one in takes})
            known |= dict(zip(gives, out, strict=True))
        return {one: known[one] for one in GRAPHS["score.onnx"][1]}


def run_graphs(graphs: Graphs, inputs: Tensors) -> dict[str, npt.NDArray[np.float32]]:
    """Features in, `cost_s`, `spread` and `probability` out, [C, E] each."""
    return _Runner(graphs)(inputs)


def random_inputs(
    classes: int, endpoints: int, *, seed: int, masked: str = "some"
) -> dict[str, npt.NDArray[np.float32]]:
    """Inputs of the schema's shapes: the names of `bundle.Probe.inputs`. masked: `some`, `but_one`,
    `none` or `all` of the endpoints cannot be used."""
    rng = np.random.default_rng((seed, classes, endpoints))

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return rng.normal(0.0, 1.0, shape).astype(np.float32)

    mask = np.ones(endpoints, dtype=np.float32)
    if masked == "some":
        mask = (rng.random(endpoints) > 0.1).astype(np.float32)
    elif masked != "none":
        mask[:] = 0.0
        mask[: 1 if masked == _MASKED else 0] = 1.0
    pair = normal(classes, endpoints, len(PAIR_FEATURES))
    pair[:, :, -1] = rng.random((classes, 1)) > 0.2
    return {
        "endpoint": normal(endpoints, len(ENDPOINT_FEATURES)),
        "request_class": normal(classes, len(CLASS_FEATURES)),
        "pair": pair,
        "table_cost_s": np.exp(normal(classes, endpoints) - 4.0),
        "rtt_s": rng.uniform(0.0, 0.01, endpoints).astype(np.float32),
        "mask": mask,
    }


def parity(graphs: Graphs, router: Router) -> float:
    """The largest difference between onnxruntime and torch: random shapes, one endpoint, all but
    one or all masked, 1,000 endpoints; infinite where a value is not finite."""
    run, worst = _Runner(graphs), 0.0
    for classes, endpoints in _SHAPES:
        for masked in ("some", _MASKED, "all"):
            inputs = random_inputs(classes, endpoints, seed=7, masked=masked)
            found, expected = run(inputs), torch_outputs(router, inputs)
            for name, value in expected.items():
                if not np.isfinite(found[name]).all():
                    return float("inf")
                off = np.abs(found[name] - value) / np.maximum(1.0, np.abs(value))
                worst = max(worst, float(off.max()))
    return worst


def torch_outputs(router: Router, inputs: Tensors) -> dict[str, npt.NDArray[np.float32]]:
    """What torch says of the same inputs."""
    with torch.no_grad():
        routed = router(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: getattr(routed, name).numpy() for name in GRAPHS["score.onnx"][1]}


def rank_agreement(found_s: npt.ArrayLike, expected_s: npt.ArrayLike) -> float:
    """Share of the classes whose fastest endpoint by found_s takes, by expected_s, at most 5 % more
    than the fastest. [C, E] each."""
    found, expected = np.asarray(found_s), np.asarray(expected_s)
    chosen = np.take_along_axis(expected, found.argmin(axis=1)[:, None], axis=1)[:, 0]
    return float((chosen <= 1.05 * expected.min(axis=1)).mean())


def with_int8(bundle: Bundle) -> tuple[Bundle, float]:
    """The bundle with its graphs in the int8 flavour besides (weights int8, activations quantised
    as they come), and how far the ranks of the two agree; without them where that is too little.

    The agreement is in the manifest as `int8_rank_agreement` either way.
    """
    made: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        for name in GRAPHS:
            before.write_bytes(bundle.graphs[name])
            quantize_dynamic(before, after, weight_type=QuantType.QInt8)
            made[name] = after.read_bytes()
    outputs = run_graphs(made, bundle.probe.inputs)
    agreement = rank_agreement(outputs["cost_s"], bundle.probe.outputs["cost_s"])
    metrics = {**bundle.manifest.metrics, "int8_rank_agreement": agreement}
    graphs = dict(bundle.graphs)
    if agreement >= RANKS_MIN:
        graphs |= {_int8(name): graph for name, graph in made.items()}
    manifest = replace(bundle.manifest, metrics=metrics)
    return replace(bundle, manifest=manifest, graphs=graphs), agreement


def _int8(name: str) -> str:
    return name.replace(".onnx", ".int8.onnx")


def bundle_of(
    router: Router,
    *,
    name: str,
    version: str,
    trained: Mapping[str, object],
    metrics: Mapping[str, float],
    card: str,
    graphs: Graphs | None = None,
    probe_inputs: Tensors | None = None,
    now_s: float | None = None,
) -> Bundle:
    """A router as a bundle in memory.

    graphs: of a bundle of the same shape of network, so that nothing is exported; None: exported.
    probe_inputs: as `bundle.Probe.inputs`; random ones without. Raises ExportError.
    """
    made = export_graphs(router) if graphs is None else with_weights(graphs, router)
    inputs = random_inputs(6, 8, seed=3) if probe_inputs is None else dict(probe_inputs)
    manifest = Manifest(
        name=name,
        version=version,
        feature_schema=schema_hash(),
        opset=OPSET,
        tolerance=1e-3,
        created_s=time.time() if now_s is None else now_s,
        trained={**trained, "shape": asdict(router.config)},
        metrics={**metrics, "parity": parity(made, router)},
    )
    return Bundle(manifest, made, Probe(inputs, run_graphs(made, inputs)), card)
