"""Records to bytes and back: every field, every odd value, and bytes that lie."""

from __future__ import annotations

import dataclasses
import random
import zlib

import numpy as np
import pytest

from cockpit_core.foundation import records
from cockpit_core.schema import batches, wire
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.arrays import pack_array, unpack_array
from cockpit_core.schema.columns import encode_columns
from cockpit_core.schema.light import encode_plain

ODD = [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308]


def make_fit(alpha: float | None = 0.25) -> records.AlphaFit:
    return records.AlphaFit(7, alpha, *[0.5 + index for index in range(12)])


def make_full_record() -> records.Record:
    return records.Record(
        kind="step",
        step=41,
        wall_time=1.7e9 + 0.25,
        time=3.5,
        seq=12,
        generation=2,
        epoch=0.5,
        batch_size=64,
        scalars={"Loss": 0.1, "log/x": float("nan"), "Up": float("inf"), "Down": float("-inf")},
        layers={"GradNorm": np.array([1.5, np.nan, np.inf]), "Distance": np.array([0.0, -2.0, 0.0])},
        layers_missing={"Distance": np.array([False, True, False])},
        alphas=[make_fit(), make_fit(None), make_fit(0.0)],
        notices=[records.Notice(41, "not_finite", "<b>loss</b>", "Loss", "conv1.weight")],
        missing={"CABS": "several learning rates"},
        estimates={"HessMaxEV": (0.01, "lanczos residual")},
        costs={"shared": 1e-4, "step": 0.02},
        top_samples=[3, 1, 2],
        status="failed",
        error="ValueError: no",
        triggered=True,
        findings=[records.Finding("not_learning", "likely", "It does not learn.", 3)],
    )


def assert_equal(left: object, right: object) -> None:
    """Field by field, NaN equal to NaN."""
    assert type(left) is type(right)
    if dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            assert_equal(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, dict) and isinstance(right, dict):
        assert list(left) == list(right)
        for key in left:
            assert_equal(left[key], right[key])
    else:
        np.testing.assert_equal(left, right)


def test_no_field_of_the_full_record_is_left_at_its_default() -> None:
    """So that the round trip below covers fields that are added later."""
    blank = records.Record("log", 0, 0.0, 0.0)
    same = [name for name, value in vars(make_full_record()).items() if np.array_equal(value, getattr(blank, name))]
    assert same == []


def test_record_comes_back_complete() -> None:
    record = make_full_record()
    assert_equal(wire.decode_record(wire.encode_record(record)), record)


def test_empty_record_comes_back() -> None:
    record = records.Record("start", 0, 1.0, 0.0)
    assert_equal(wire.decode_record(wire.encode_record(record)), record)


@pytest.mark.parametrize("value", ODD)
def test_odd_values_survive_as_scalars_and_per_layer(value: float) -> None:
    record = records.Record("step", 0, 1.0, 1.0, scalars={"X": value}, layers={"X": np.array([value, 1.0])})
    back = wire.decode_record(wire.encode_record(record))
    assert np.array(back.scalars["X"]).tobytes() == np.array(value).tobytes() or np.isnan(value)
    np.testing.assert_equal(back.scalars["X"], value)
    np.testing.assert_equal(back.layers["X"][0], value)


def test_layer_values_are_narrow_unless_they_do_not_fit() -> None:
    small = records.Record("step", 0, 1.0, 1.0, layers={"X": np.array([0.1, np.nan])})
    large = records.Record("step", 0, 1.0, 1.0, layers={"X": np.array([0.1, 1e300])})
    assert wire.decode_record(wire.encode_record(small)).layers["X"].dtype == np.float32
    np.testing.assert_array_equal(wire.decode_record(wire.encode_record(large)).layers["X"], [0.1, 1e300])


def draw_record(draw: random.Random) -> records.Record:
    """An ordinary record with odd numbers in it."""

    def number() -> float:
        return draw.choice([0.0, *ODD, 1e-40, 3e38, draw.gauss(0, 1), draw.gauss(0, 1), draw.gauss(0, 1e6)])

    layers, names = draw.choice([0, 1, 2, 3, 130, 700]), ["Loss", "GradNorm", "log/größe", "a" * 200, ""]
    vectors = {name: np.array([number() for _ in range(layers)]) for name in names[: draw.randrange(5)]}
    if draw.random() < 0.7:  # all of them fit into 32 bits
        vectors = {name: vector.astype(np.float32).astype(float) for name, vector in vectors.items()}
    absent = {name: np.array([draw.random() < 0.3 for _ in range(layers)]) for name in vectors if draw.random() < 0.7}
    fits = [
        records.AlphaFit(draw.randrange(300), draw.choice([None, 0.0, number()]), *(number() for _ in range(12)))
        for _ in range(draw.randrange(3))
    ]
    small = [0, 1, 127, 128, 70_000, 2**32 - 1]
    return records.Record(
        kind=draw.choice(["step", "log", "start", "end"]), step=draw.choice(small), wall_time=number(), time=number(),
        seq=draw.choice(small), generation=draw.choice(small), epoch=draw.choice([None, 0.0, number()]),
        batch_size=draw.choice(small), scalars={name: number() for name in names[: draw.randrange(5)]},
        layers=vectors, layers_missing=absent, alphas=fits, costs={name: number() for name in names[draw.randrange(5) :]},
        top_samples=[draw.choice(small) for _ in range(draw.randrange(6))], triggered=draw.random() < 0.5,
        missing={name: draw.choice(["", "größer", "why" * 70]) for name in names[draw.randrange(6) :]},
    )  # fmt: skip


def test_records_written_by_hand_are_those_of_the_generated_code() -> None:
    draw = random.Random(0)
    with np.errstate(over="ignore"):
        for record in [draw_record(draw) for _ in range(300)]:
            assert encode_plain(record, wire._KINDS[record.kind]) == wire.encode_any(record)


def test_what_few_records_hold_is_left_to_the_generated_code() -> None:
    for name in ("notices", "estimates", "status", "error", "findings"):
        record = dataclasses.replace(records.Record("step", 1, 2.0, 3.0), **{name: getattr(make_full_record(), name)})
        assert encode_plain(record, wire._KINDS["step"]) is None
        assert_equal(wire.decode_record(wire.encode_record(record)), record)
    with pytest.raises(ValueError, match="-1"):
        wire.encode_record(records.Record("step", -1, 2.0, 3.0))


def test_text_with_half_a_character_is_stored_without_it() -> None:
    record = records.Record("end", 0, 1.0, 1.0, status="failed", error="no such file: \udcff")
    assert wire.decode_record(wire.encode_record(record)).error == "no such file: ?"


def make_full_header() -> records.Header:
    layer = records.LayerInfo("fc.weight", (10, 5), 50, "Linear", "rule", "because")
    quantity = records.QuantityInfo("CABS", "scalar", True, "samples", "what", "every step", {"eps": "1e-5"}, True)
    optimizer = records.OptimizerInfo("SGD", [{"lr": "0.1"}, {"lr": "0.2"}], [["fc.weight"], []])
    return records.Header(
        run_id="id",
        name="run",
        created=1.5,
        revision=3,
        model="Net",
        num_parameters=50,
        layers=[layer],
        loss="MSELoss",
        optimizers=[optimizer],
        config="full",
        schedule="every step",
        curvature="ggn",
        quantities=[quantity],
        versions={"torch": "2.13.0"},
        git_commit="abc",
        batch_size=8,
        covered=0.5,
        notes=["note"],
        options={"a": "b"},
        steps_per_epoch=12.5,
    )


def test_header_comes_back_complete() -> None:
    header = make_full_header()
    blank = records.Header("", "", 0.0)
    assert [name for name, value in vars(header).items() if value == getattr(blank, name)] == []
    assert_equal(wire.decode_header(wire.encode_header(header)), header)


@pytest.mark.parametrize("large", [False, True])
def test_histograms_come_back_complete(large: bool) -> None:
    counts = np.arange(12, dtype=np.uint64).reshape(3, 4) + (2**40 if large else 0)
    edges, parameter_edges = np.linspace(-1, 1, 4), np.linspace(-2, 2, 5)
    histogram = records.Histogram("GradHist2d", 5, counts, edges, parameter_edges, "fc", 1, 2, 3, 4, 5, 6, 7)
    back = wire.decode_histogram(wire.encode_histogram(histogram))
    assert back.counts.dtype == (np.uint64 if large else np.uint32)
    back.counts = back.counts.astype(np.uint64)
    assert_equal(back, histogram)


def test_flat_histogram_has_no_parameter_edges() -> None:
    histogram = records.Histogram("GradHist1d", 5, np.zeros(3, np.uint32), np.linspace(0, 1, 4))
    assert_equal(wire.decode_histogram(wire.encode_histogram(histogram)), histogram)


@pytest.mark.parametrize("step", [0, 1, 127, 128, 2**32 - 1])
@pytest.mark.parametrize("bins", [0, 1, 100, 300])
@pytest.mark.parametrize("largest", [0, 7, 2**33])
def test_flat_histograms_are_written_as_protobuf_would(step: int, bins: int, largest: int) -> None:
    """The same bytes, whatever is zero, empty or not compressed."""
    counts = np.random.default_rng(0).integers(0, largest + 1, bins)
    for quantity, layer in (("GradHist1d", ""), ("", "schichten.0.größe")):
        for apart in ((0,) * 7, (1, 2, 3, 4, 5, 0, 0), (0, 0, 0.5, 0, 2**60, 1, 2)):
            histogram = records.Histogram(quantity, step, counts, np.linspace(-2, 2, bins + 1), None, layer, *apart)
            written = wire.encode_histogram(histogram)
            message = wire.parse(pb.Histogram, written)
            assert message.SerializeToString() == written
            back = wire.decode_histogram(written) if apart[2] != 0.5 else None
            assert (message.quantity, message.step, message.layer) == (quantity, step, layer)
            assert back is None or np.array_equal(back.counts, counts)
            assert [getattr(message, name) for name in wire._HISTOGRAM_COUNTS] == list(apart)
            assert not message.HasField("parameter_edges")


def test_sparse_counts_are_compressed() -> None:
    histogram = records.Histogram("GradHist2d", 5, np.zeros((40, 50)), np.linspace(0, 1, 41), np.linspace(0, 1, 51))
    assert len(wire.encode_histogram(histogram)) < 1000


@pytest.mark.parametrize("dtype", ["f8", "f4", "u4", "u8", "i4", "u1"])
@pytest.mark.parametrize("compress", [False, True])
def test_arrays_of_each_type_come_back(dtype: str, compress: bool) -> None:
    values = np.arange(600).reshape(20, 30).astype(dtype)
    back = unpack_array(pack_array(values[:, ::2], compress=compress))
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values[:, ::2])


@pytest.mark.parametrize("order", [">f8", "<f8"])
def test_arrays_are_little_endian_on_the_wire(order: str) -> None:
    assert pack_array(np.array([1.0], dtype=order)).data == b"\0\0\0\0\0\0\xf0?"


def test_array_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="complex128"):
        pack_array(np.zeros(2, dtype=complex))


LIES = {
    "more elements than bytes": pb.Array(dtype=1, shape=[3], data=bytes(16)),
    "fewer elements than bytes": pb.Array(dtype=1, shape=[1], data=bytes(16)),
    "a shape beyond all memory": pb.Array(dtype=1, shape=[2**32 - 1] * 4, data=bytes(8)),
    "a compression bomb": pb.Array(dtype=6, shape=[10], codec=1, data=zlib.compress(bytes(50_000_000))),
    "damaged compression": pb.Array(dtype=6, shape=[10], codec=1, data=b"nonsense"),
    "unknown type": pb.Array(dtype=77, shape=[1], data=bytes(8)),
    "unknown codec": pb.Array(dtype=1, shape=[1], codec=9, data=bytes(8)),
    "no type": pb.Array(shape=[1], data=bytes(8)),
}


@pytest.mark.parametrize("lie", LIES)
def test_array_that_lies_is_a_value_error(lie: str) -> None:
    with pytest.raises(ValueError, match=r"bytes|compression|unknown"):
        unpack_array(LIES[lie])


def test_record_with_unequal_names_and_values_is_a_value_error() -> None:
    scalars = pb.Scalars(names=["a", "b"], values=bytes(8))
    with pytest.raises(ValueError, match="2 names"):
        wire.decode_record(pb.Record(kind=1, scalars=scalars).SerializeToString())


def test_record_with_wrong_marks_is_a_value_error() -> None:
    vector = pb.LayerVector(name="x", values=pack_array(np.zeros(2)), present=b"\1")
    with pytest.raises(ValueError, match="1 marks"):
        wire.decode_record(pb.Record(kind=1, layers=[vector]).SerializeToString())


@pytest.mark.parametrize(
    "decode", [wire.decode_record, wire.decode_header, wire.decode_histogram, batches.decode_batch]
)
def test_noise_is_a_value_error_or_harmless(decode: object) -> None:
    assert callable(decode)
    random = np.random.default_rng(0)
    refused = 0
    for size in range(1, 400):
        try:
            decode(random.integers(0, 256, size, dtype=np.uint8).tobytes())
        except ValueError:
            refused += 1
    assert refused > 300


def test_columns_written_by_hand_are_those_of_the_generated_code() -> None:
    """A hundred of them go into every message to a notebook: they do not take the slow way."""
    message, columns = pb.Batch(), []
    for count in (0, 1, 15, 16, 17, 2100):  # lengths of one, two and three bytes
        for name, layer, rows in (("Loss", "", None), ("log/\u00fc" * 30, "a.b" * 50, np.arange(count))):
            values = np.resize(ODD, count)
            columns.append(records.BatchColumn(name, values, layer, rows, decimated=rows is not None))
            numbers = None if rows is None else pack_array(rows.astype("<u4"))
            message.columns.add(
                name=name, layer=layer, values=pack_array(values), rows=numbers, decimated=rows is not None
            )
    assert encode_columns(columns) == message.SerializeToString(deterministic=True)


def test_generated_code_has_a_name_of_its_own_in_the_pool() -> None:
    assert pb.DESCRIPTOR.name == "cockpit_core/schema/cockpit.proto"
    assert pb.DESCRIPTOR.package == "cockpit.v1"
