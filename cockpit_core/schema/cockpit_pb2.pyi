from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT64: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_UINT32: _ClassVar[DType]
    DTYPE_UINT64: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_RAW: _ClassVar[Codec]
    CODEC_ZLIB: _ClassVar[Codec]

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_STEP: _ClassVar[Kind]
    KIND_LOG: _ClassVar[Kind]
    KIND_START: _ClassVar[Kind]
    KIND_END: _ClassVar[Kind]
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT64: DType
DTYPE_FLOAT32: DType
DTYPE_UINT32: DType
DTYPE_UINT64: DType
DTYPE_INT32: DType
DTYPE_UINT8: DType
CODEC_RAW: Codec
CODEC_ZLIB: Codec
KIND_UNSPECIFIED: Kind
KIND_STEP: Kind
KIND_LOG: Kind
KIND_START: Kind
KIND_END: Kind

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "codec", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    codec: Codec
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., codec: _Optional[_Union[Codec, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Layer(_message.Message):
    __slots__ = ("name", "shape", "size", "module", "method", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    size: float
    module: str
    method: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., size: _Optional[float] = ..., module: _Optional[str] = ..., method: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ParamGroup(_message.Message):
    __slots__ = ("hyperparameters", "layers")
    class HyperparametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    hyperparameters: _containers.ScalarMap[str, str]
    layers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hyperparameters: _Optional[_Mapping[str, str]] = ..., layers: _Optional[_Iterable[str]] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("name", "groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    groups: _containers.RepeatedCompositeFieldContainer[ParamGroup]
    def __init__(self, name: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[ParamGroup, _Mapping]]] = ...) -> None: ...

class Quantity(_message.Message):
    __slots__ = ("name", "kind", "layerwise", "unit", "description", "schedule", "options", "defined_for_sgd")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERWISE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DEFINED_FOR_SGD_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    layerwise: bool
    unit: str
    description: str
    schedule: str
    options: _containers.ScalarMap[str, str]
    defined_for_sgd: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., layerwise: bool = ..., unit: _Optional[str] = ..., description: _Optional[str] = ..., schedule: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., defined_for_sgd: bool = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("schema_version", "revision", "run_id", "name", "created", "model", "num_parameters", "layers", "loss", "optimizers", "config", "schedule", "curvature", "quantities", "versions", "git_commit", "batch_size", "covered", "notes", "options", "steps_per_epoch")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    CURVATURE_FIELD_NUMBER: _ClassVar[int]
    QUANTITIES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    GIT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    revision: int
    run_id: str
    name: str
    created: float
    model: str
    num_parameters: float
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    loss: str
    optimizers: _containers.RepeatedCompositeFieldContainer[Optimizer]
    config: str
    schedule: str
    curvature: str
    quantities: _containers.RepeatedCompositeFieldContainer[Quantity]
    versions: _containers.ScalarMap[str, str]
    git_commit: str
    batch_size: int
    covered: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    options: _containers.ScalarMap[str, str]
    steps_per_epoch: float
    def __init__(self, schema_version: _Optional[int] = ..., revision: _Optional[int] = ..., run_id: _Optional[str] = ..., name: _Optional[str] = ..., created: _Optional[float] = ..., model: _Optional[str] = ..., num_parameters: _Optional[float] = ..., layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., loss: _Optional[str] = ..., optimizers: _Optional[_Iterable[_Union[Optimizer, _Mapping]]] = ..., config: _Optional[str] = ..., schedule: _Optional[str] = ..., curvature: _Optional[str] = ..., quantities: _Optional[_Iterable[_Union[Quantity, _Mapping]]] = ..., versions: _Optional[_Mapping[str, str]] = ..., git_commit: _Optional[str] = ..., batch_size: _Optional[int] = ..., covered: _Optional[float] = ..., notes: _Optional[_Iterable[str]] = ..., options: _Optional[_Mapping[str, str]] = ..., steps_per_epoch: _Optional[float] = ...) -> None: ...

class Scalars(_message.Message):
    __slots__ = ("names", "values")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    values: bytes
    def __init__(self, names: _Optional[_Iterable[str]] = ..., values: _Optional[bytes] = ...) -> None: ...

class LayerVector(_message.Message):
    __slots__ = ("name", "values", "present")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: Array
    present: bytes
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Union[Array, _Mapping]] = ..., present: _Optional[bytes] = ...) -> None: ...

class AlphaFit(_message.Message):
    __slots__ = ("step", "alpha", "has_alpha", "length", "loss_start", "loss_end", "slope_start", "slope_end", "loss_var_start", "loss_var_end", "slope_var_start", "slope_var_end", "w0", "w1", "w2")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    HAS_ALPHA_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LOSS_START_FIELD_NUMBER: _ClassVar[int]
    LOSS_END_FIELD_NUMBER: _ClassVar[int]
    SLOPE_START_FIELD_NUMBER: _ClassVar[int]
    SLOPE_END_FIELD_NUMBER: _ClassVar[int]
    LOSS_VAR_START_FIELD_NUMBER: _ClassVar[int]
    LOSS_VAR_END_FIELD_NUMBER: _ClassVar[int]
    SLOPE_VAR_START_FIELD_NUMBER: _ClassVar[int]
    SLOPE_VAR_END_FIELD_NUMBER: _ClassVar[int]
    W0_FIELD_NUMBER: _ClassVar[int]
    W1_FIELD_NUMBER: _ClassVar[int]
    W2_FIELD_NUMBER: _ClassVar[int]
    step: int
    alpha: float
    has_alpha: bool
    length: float
    loss_start: float
    loss_end: float
    slope_start: float
    slope_end: float
    loss_var_start: float
    loss_var_end: float
    slope_var_start: float
    slope_var_end: float
    w0: float
    w1: float
    w2: float
    def __init__(self, step: _Optional[int] = ..., alpha: _Optional[float] = ..., has_alpha: bool = ..., length: _Optional[float] = ..., loss_start: _Optional[float] = ..., loss_end: _Optional[float] = ..., slope_start: _Optional[float] = ..., slope_end: _Optional[float] = ..., loss_var_start: _Optional[float] = ..., loss_var_end: _Optional[float] = ..., slope_var_start: _Optional[float] = ..., slope_var_end: _Optional[float] = ..., w0: _Optional[float] = ..., w1: _Optional[float] = ..., w2: _Optional[float] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("step", "kind", "quantity", "layer", "message")
    STEP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    step: int
    kind: str
    quantity: str
    layer: str
    message: str
    def __init__(self, step: _Optional[int] = ..., kind: _Optional[str] = ..., quantity: _Optional[str] = ..., layer: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("name", "value", "low", "high", "unit", "step", "layer", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    low: float
    high: float
    unit: str
    step: int
    layer: str
    text: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., unit: _Optional[str] = ..., step: _Optional[int] = ..., layer: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("name", "severity", "text", "since", "layers", "evidence", "remedy", "confidence", "explains", "retracted", "step")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    EXPLAINS_FIELD_NUMBER: _ClassVar[int]
    RETRACTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    severity: str
    text: str
    since: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    remedy: str
    confidence: float
    explains: _containers.RepeatedScalarFieldContainer[str]
    retracted: bool
    step: int
    def __init__(self, name: _Optional[str] = ..., severity: _Optional[str] = ..., text: _Optional[str] = ..., since: _Optional[int] = ..., layers: _Optional[_Iterable[str]] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., remedy: _Optional[str] = ..., confidence: _Optional[float] = ..., explains: _Optional[_Iterable[str]] = ..., retracted: bool = ..., step: _Optional[int] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Estimate(_message.Message):
    __slots__ = ("name", "error", "method")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: float
    method: str
    def __init__(self, name: _Optional[str] = ..., error: _Optional[float] = ..., method: _Optional[str] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("seq", "kind", "step", "generation", "wall_time", "time", "epoch", "batch_size", "scalars", "layers", "alphas", "warnings", "missing", "estimates", "costs", "top_samples", "status", "error", "triggered", "findings")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ALPHAS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    TOP_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRIGGERED_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    kind: Kind
    step: int
    generation: int
    wall_time: float
    time: float
    epoch: float
    batch_size: int
    scalars: Scalars
    layers: _containers.RepeatedCompositeFieldContainer[LayerVector]
    alphas: _containers.RepeatedCompositeFieldContainer[AlphaFit]
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    missing: _containers.RepeatedCompositeFieldContainer[Missing]
    estimates: _containers.RepeatedCompositeFieldContainer[Estimate]
    costs: _containers.RepeatedCompositeFieldContainer[Cost]
    top_samples: _containers.RepeatedScalarFieldContainer[int]
    status: str
    error: str
    triggered: bool
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, seq: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., wall_time: _Optional[float] = ..., time: _Optional[float] = ..., epoch: _Optional[float] = ..., batch_size: _Optional[int] = ..., scalars: _Optional[_Union[Scalars, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[LayerVector, _Mapping]]] = ..., alphas: _Optional[_Iterable[_Union[AlphaFit, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., missing: _Optional[_Iterable[_Union[Missing, _Mapping]]] = ..., estimates: _Optional[_Iterable[_Union[Estimate, _Mapping]]] = ..., costs: _Optional[_Iterable[_Union[Cost, _Mapping]]] = ..., top_samples: _Optional[_Iterable[int]] = ..., status: _Optional[str] = ..., error: _Optional[str] = ..., triggered: bool = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("quantity", "step", "layer", "counts", "edges", "parameter_edges", "nan", "pos_inf", "neg_inf", "below", "above", "parameter_below", "parameter_above")
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_EDGES_FIELD_NUMBER: _ClassVar[int]
    NAN_FIELD_NUMBER: _ClassVar[int]
    POS_INF_FIELD_NUMBER: _ClassVar[int]
    NEG_INF_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BELOW_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_ABOVE_FIELD_NUMBER: _ClassVar[int]
    quantity: str
    step: int
    layer: str
    counts: Array
    edges: Array
    parameter_edges: Array
    nan: float
    pos_inf: float
    neg_inf: float
    below: float
    above: float
    parameter_below: float
    parameter_above: float
    def __init__(self, quantity: _Optional[str] = ..., step: _Optional[int] = ..., layer: _Optional[str] = ..., counts: _Optional[_Union[Array, _Mapping]] = ..., edges: _Optional[_Union[Array, _Mapping]] = ..., parameter_edges: _Optional[_Union[Array, _Mapping]] = ..., nan: _Optional[float] = ..., pos_inf: _Optional[float] = ..., neg_inf: _Optional[float] = ..., below: _Optional[float] = ..., above: _Optional[float] = ..., parameter_below: _Optional[float] = ..., parameter_above: _Optional[float] = ...) -> None: ...

class SeriesMeta(_message.Message):
    __slots__ = ("schema_version", "kind", "quantity", "generation")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    kind: str
    quantity: str
    generation: int
    def __init__(self, schema_version: _Optional[int] = ..., kind: _Optional[str] = ..., quantity: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "layer", "rows", "values", "decimated")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DECIMATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    layer: str
    rows: Array
    values: Array
    decimated: bool
    def __init__(self, name: _Optional[str] = ..., layer: _Optional[str] = ..., rows: _Optional[_Union[Array, _Mapping]] = ..., values: _Optional[_Union[Array, _Mapping]] = ..., decimated: bool = ...) -> None: ...

class RowNotes(_message.Message):
    __slots__ = ("row", "missing", "top_samples")
    ROW_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TOP_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    row: int
    missing: _containers.RepeatedCompositeFieldContainer[Missing]
    top_samples: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, row: _Optional[int] = ..., missing: _Optional[_Iterable[_Union[Missing, _Mapping]]] = ..., top_samples: _Optional[_Iterable[int]] = ...) -> None: ...

class HeavyIndex(_message.Message):
    __slots__ = ("quantity", "steps")
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    quantity: str
    steps: Array
    def __init__(self, quantity: _Optional[str] = ..., steps: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("state", "error", "last_wall_time", "records", "expected", "broken")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    state: str
    error: str
    last_wall_time: float
    records: int
    expected: int
    broken: int
    def __init__(self, state: _Optional[str] = ..., error: _Optional[str] = ..., last_wall_time: _Optional[float] = ..., records: _Optional[int] = ..., expected: _Optional[int] = ..., broken: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("protocol", "run", "run_id", "from_seq", "to_seq", "replace", "header", "seq", "step", "time", "wall_time", "epoch", "triggered", "columns", "alphas", "warnings", "notes", "heavy", "histograms", "status", "drop_from_step", "findings")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    TO_SEQ_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRIGGERED_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ALPHAS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    HEAVY_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DROP_FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    run_id: str
    from_seq: int
    to_seq: int
    replace: bool
    header: Header
    seq: Array
    step: Array
    time: Array
    wall_time: Array
    epoch: Array
    triggered: Array
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    alphas: _containers.RepeatedCompositeFieldContainer[AlphaFit]
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    notes: _containers.RepeatedCompositeFieldContainer[RowNotes]
    heavy: _containers.RepeatedCompositeFieldContainer[HeavyIndex]
    histograms: _containers.RepeatedCompositeFieldContainer[Histogram]
    status: Status
    drop_from_step: float
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., run_id: _Optional[str] = ..., from_seq: _Optional[int] = ..., to_seq: _Optional[int] = ..., replace: bool = ..., header: _Optional[_Union[Header, _Mapping]] = ..., seq: _Optional[_Union[Array, _Mapping]] = ..., step: _Optional[_Union[Array, _Mapping]] = ..., time: _Optional[_Union[Array, _Mapping]] = ..., wall_time: _Optional[_Union[Array, _Mapping]] = ..., epoch: _Optional[_Union[Array, _Mapping]] = ..., triggered: _Optional[_Union[Array, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., alphas: _Optional[_Iterable[_Union[AlphaFit, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., notes: _Optional[_Iterable[_Union[RowNotes, _Mapping]]] = ..., heavy: _Optional[_Iterable[_Union[HeavyIndex, _Mapping]]] = ..., histograms: _Optional[_Iterable[_Union[Histogram, _Mapping]]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., drop_from_step: _Optional[float] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...
