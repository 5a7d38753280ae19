#include "formats/pickle/torch_tensor.h"

#include "lib/base/checked.h"

namespace ckpt::pickle {

using tensor::DType;

namespace {

constexpr int kMaxWrappers = 8;
constexpr size_t kMaxRank = 64;

/// Typed storages: the class is named after the element type.
struct StorageClass {
  std::string_view name, dtype;
};
constexpr StorageClass kStorages[] = {
    {"FloatStorage", "float32"},
    {"BFloat16Storage", "bfloat16"},
    {"HalfStorage", "float16"},
    {"DoubleStorage", "float64"},
    {"LongStorage", "int64"},
    {"IntStorage", "int32"},
    {"ShortStorage", "int16"},
    {"CharStorage", "int8"},
    {"ByteStorage", "uint8"},
    {"BoolStorage", "bool"},
    {"ComplexFloatStorage", "complex64"},
    {"ComplexDoubleStorage", "complex128"},
    {"QInt8Storage", "qint8"},
    {"QUInt8Storage", "quint8"},
    {"QInt32Storage", "qint32"},
    {"QUInt4x2Storage", "quint4x2"},
    {"QUInt2x4Storage", "quint2x4"},
};

/// dtypes of torch that no DType of ours is, and what carries their bytes. Those of less than a byte (uint4, int3) are
/// not here: torch.save refuses them.
constexpr TorchDType kCarried[] = {
    {DType::kInt8, "qint8", true, false},    {DType::kUint8, "quint8", true, false},
    {DType::kInt32, "qint32", true, false},  {DType::kUint8, "quint4x2", true, true},
    {DType::kUint8, "quint2x4", true, true}, {DType::kUint8, "bits8", true, false},
    {DType::kUint16, "bits16", true, false}, {DType::kUint8, "bits1x8", true, false},
    {DType::kUint8, "bits2x4", true, false}, {DType::kUint8, "bits4x2", true, false},
};

Unexpected malformed(const char* what) { return fail(Code::kCorrupt, "", std::string("malformed tensor: ") + what); }

/// Follows Parameters to the call that has the storage.
NodeId unwrap(const Graph& graph, NodeId id) {
  for (int i = 0; i < kMaxWrappers; ++i) {
    auto args = graph.args(id) == kNoNode ? std::span<const NodeId>() : graph.tuple(graph.args(id));
    if (graph.call(id) == Meaning::kRebuildParameter && !args.empty()) {
      id = args[0];
    } else {
      return id;
    }
  }
  return id;
}

bool is_rebuild(Meaning meaning) {
  switch (meaning) {
    case Meaning::kRebuildTensor: case Meaning::kRebuildTensorV2: case Meaning::kRebuildTensorV3:
    case Meaning::kRebuildQuantised:
    case Meaning::kRebuildParameter:
    case Meaning::kRebuildMeta:
    case Meaning::kRebuildFromType:
    case Meaning::kRebuildSparse:
    case Meaning::kRebuildNested:
    case Meaning::kRebuildWrapper:
    case Meaning::kRebuildFromCpu:
    case Meaning::kRebuildOther:
      return true;
    default: return false;
  }
}

std::optional<uint64_t> as_size(const Graph& graph, NodeId id) {
  auto value = graph.as_int(id);
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

/// ("storage", class, key, location, count[, view]) of a persistent id. `dtype` of untyped storages is the caller's.
Result<void> read_storage(const Graph& graph, NodeId id, std::optional<TorchDType> dtype, TorchTensor& out) {
  if (graph.kind(id) != Kind::kPersistent) return malformed("its storage is no persistent id");
  auto fields = graph.tuple(graph.args(id));
  if (fields.size() != 5 && fields.size() != 6) return malformed("its storage has other than five fields");
  auto key = graph.as_str(fields[2]);
  auto count = as_size(graph, fields[4]);
  const GlobalName* type = graph.global(fields[1]);
  if (graph.as_str(fields[0]) != "storage" || !key || !count || type == nullptr)
    return malformed("its storage has wrong types");
  out.storage_key = *key;
  if (dtype) {
    if (type->meaning != Meaning::kUntypedStorage && type->meaning != Meaning::kTorchStorage)
      return malformed("an unknown storage class");
    out.torch_dtype = *dtype;
    out.storage_bytes = *count;
  } else {
    const StorageClass* found = nullptr;
    for (const StorageClass& known : kStorages) {
      if (type->meaning == Meaning::kTorchStorage && type->name == known.name) found = &known;
    }
    if (found == nullptr) return fail(Code::kUnsupported, "", "a tensor over " + type->text());
    out.torch_dtype = *torch_dtype_from_name(found->dtype);
    auto bytes = checked_mul<uint64_t>(*count, tensor::item_size(out.torch_dtype.dtype));
    if (!bytes) return malformed("a storage too large to count");
    out.storage_bytes = *bytes;
  }
  out.dtype = out.torch_dtype.dtype;
  if (fields.size() == 6 && !graph.is_none(fields[5])) {
    // (key, offset, count) of a part of the storage.
    auto view = graph.tuple(fields[5]);
    auto offset = view.size() == 3 ? as_size(graph, view[1]) : std::nullopt;
    if (!offset) return malformed("its storage view has wrong types");
    out.storage_offset = *offset;
  }
  return {};
}

/// Every element inside the storage, all products countable.
Result<void> check_extent(const TorchTensor& t) {
  auto count = tensor::element_count(t.shape);
  const uint64_t item = tensor::item_size(t.dtype);
  if (!count || !checked_mul(*count, item)) return malformed("more elements than can be counted");
  if (*count == 0) return {};
  uint64_t last = t.storage_offset;
  for (size_t i = 0; i < t.shape.size(); ++i) {
    auto reach = checked_mul(t.shape[i] - 1, t.stride[i]);
    auto sum = reach ? checked_add(last, *reach) : std::nullopt;
    if (!sum) return malformed("it reaches beyond its storage");
    last = *sum;
  }
  if (last >= t.storage_bytes / item) return malformed("it reaches beyond its storage");
  return {};
}

}  // namespace

bool TorchTensor::contiguous() const {
  if (tensor::element_count(shape) == uint64_t{0}) return true;
  uint64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::optional<tensor::Shape> read_sizes(const Graph& graph, NodeId id) {
  if (id == kNoNode) return std::nullopt;
  if (graph.call(id) == Meaning::kTorchSize) {
    auto args = graph.tuple(graph.args(id));
    if (args.size() != 1) return std::nullopt;
    id = args[0];
  }
  if (graph.kind(id) != Kind::kTuple && graph.kind(id) != Kind::kList) return std::nullopt;
  auto items = graph.items(id);
  if (items.size() > kMaxRank) return std::nullopt;
  tensor::Shape out;
  out.reserve(items.size());
  for (NodeId item : items) {
    auto size = as_size(graph, item);
    if (!size) return std::nullopt;
    out.push_back(*size);
  }
  return out;
}

std::optional<TorchDType> torch_dtype_from_name(std::string_view name) {
  if (auto dtype = tensor::dtype_from_name(name)) return TorchDType{*dtype, name, false, false};
  for (const TorchDType& known : kCarried) {
    if (known.name == name) return known;
  }
  return std::nullopt;
}

Result<TorchDType> read_torch_dtype(const Graph& graph, NodeId id) {
  const GlobalName* name = id == kNoNode ? nullptr : graph.global(id);
  if (name == nullptr || name->meaning != Meaning::kTorchDType) return malformed("its dtype is no torch.dtype");
  auto dtype = torch_dtype_from_name(name->name);
  if (!dtype) return fail(Code::kUnsupported, "", "dtype " + name->text());
  return *dtype;
}

Result<TorchStorage> read_torch_storage(const Graph& graph, NodeId id) {
  TorchTensor out;
  auto fields = graph.kind(id) == Kind::kPersistent ? graph.tuple(graph.args(id)) : std::span<const NodeId>();
  // Legacy files count the bytes of an untyped storage as uint8 elements.
  bool untyped = fields.size() >= 2 && graph.global_meaning(fields[1]) == Meaning::kUntypedStorage;
  CKPT_TRY(read_storage(graph, id, untyped ? torch_dtype_from_name("uint8") : std::nullopt, out));
  return TorchStorage{out.storage_key, out.storage_bytes, tensor::item_size(out.dtype)};
}

bool is_torch_tensor(const Graph& graph, NodeId id) { return is_rebuild(graph.call(id)); }

RebuildCall rebuild_call(const Graph& graph, NodeId id) {
  RebuildCall out;
  if (id == kNoNode || graph.kind(id) != Kind::kObject) return out;
  out.args = graph.tuple(graph.args(id));
  NodeId function = graph.callee(id);
  // Before 1.12 there was `_rebuild_from_type(function, type, arguments, attributes)`.
  for (int i = 0;
       i < kMaxWrappers && graph.global_meaning(function) == Meaning::kRebuildFromType && out.args.size() == 4; ++i) {
    out.type = out.args[1];
    out.state = out.args[3];
    function = out.args[0];
    out.args = graph.tuple(out.args[2]);
  }
  out.function = graph.global(function);
  return out;
}

namespace {

/// {"conj": True}, {"neg": True}: the bits of a lazy view. Other entries are those of devices.
void read_view_bits(const Graph& graph, NodeId metadata, TorchTensor& out) {
  NodeId conj = graph.get(metadata, "conj"), neg = graph.get(metadata, "neg");
  out.conjugated = conj != kNoNode && graph.as_bool(conj) == true;
  out.negated = neg != kNoNode && graph.as_bool(neg) == true;
}

/// Elements smaller than a byte have no strides that bytes could have: the whole storage is what can be handed out.
Result<void> take_packed(TorchTensor& out) {
  if (out.storage_offset != 0 || !out.contiguous()) {
    return fail(Code::kUnsupported, "", "a view into packed " + std::string(out.torch_dtype.name));
  }
  out.shape = {out.storage_bytes};
  out.stride = {1};
  return {};
}

}  // namespace

Result<TorchTensor> read_torch_tensor(const Graph& graph, NodeId id) {
  const RebuildCall call = rebuild_call(graph, unwrap(graph, id));
  if (call.function == nullptr) return malformed("it is not made by a rebuild function");
  const Meaning meaning = call.function->meaning;
  const auto& args = call.args;
  size_t wanted = 0;
  switch (meaning) {
    case Meaning::kRebuildTensor: wanted = 4; break;
    case Meaning::kRebuildTensorV2: wanted = 6; break;
    case Meaning::kRebuildTensorV3: case Meaning::kRebuildQuantised: wanted = 7; break;
    case Meaning::kRebuildMeta: return fail(Code::kUnsupported, "", "a meta tensor, which has no data");
    default: return fail(Code::kUnsupported, "", "a tensor made by " + call.function->text());
  }
  if (args.size() < wanted || args.size() > wanted + 1) return malformed("wrong number of arguments");
  TorchTensor out;
  std::optional<TorchDType> dtype;
  if (meaning == Meaning::kRebuildTensorV3) {
    CKPT_TRY_ASSIGN(dtype, read_torch_dtype(graph, args[6]));
  }
  CKPT_TRY(read_storage(graph, args[0], dtype, out));
  auto offset = as_size(graph, args[1]);
  auto shape = read_sizes(graph, args[2]), stride = read_sizes(graph, args[3]);
  if (!offset || !shape || !stride || shape->size() != stride->size())
    return malformed("its offset, sizes or strides have wrong types");
  auto start = checked_add(out.storage_offset, *offset);
  if (!start) return malformed("it reaches beyond its storage");
  out.storage_offset = *start;
  out.shape = std::move(*shape);
  out.stride = std::move(*stride);
  out.logical_shape = out.shape;
  if (meaning == Meaning::kRebuildQuantised) out.quantiser = args[4];
  else if (args.size() > wanted && meaning != Meaning::kRebuildTensor) read_view_bits(graph, args[wanted], out);
  if (out.torch_dtype.packed) CKPT_TRY(take_packed(out));
  CKPT_TRY(check_extent(out));
  return out;
}

}  // namespace ckpt::pickle
