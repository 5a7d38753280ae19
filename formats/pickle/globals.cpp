// The allow-list: every name that a checkpoint has use for, and what it means here (formats.md 1.5, 2.2, 3.2, 3.4).
#include <unordered_map>

#include "formats/pickle/torch_tensor.h"

namespace ckpt::pickle {

namespace {

struct Row {
  const char* module;
  const char* name;
  Meaning meaning;
};

constexpr const char* kOldDcp = "torch.distributed._shard.checkpoint.metadata";
constexpr const char* kDcp = "torch.distributed.checkpoint.metadata";
constexpr const char* kSharded = "torch.distributed._shard.sharded_tensor.metadata";
constexpr const char* kPlanner = "torch.distributed.checkpoint.planner";
constexpr const char* kMcoreTorch = "megatron.core.dist_checkpointing.strategies.torch";

constexpr Row kRows[] = {
    {"collections", "OrderedDict", Meaning::kOrderedDict},
    {"collections", "defaultdict", Meaning::kDefaultDict},
    {"collections", "Counter", Meaning::kCounter},
    {"builtins", "set", Meaning::kSetType},
    {"builtins", "frozenset", Meaning::kFrozenSetType},
    {"builtins", "bytearray", Meaning::kByteArray},
    {"builtins", "bytes", Meaning::kBytesType},
    {"builtins", "complex", Meaning::kComplex},
    {"builtins", "list", Meaning::kListType},
    {"builtins", "dict", Meaning::kDictType},
    {"builtins", "tuple", Meaning::kTupleType},
    {"builtins", "slice", Meaning::kSlice},
    {"builtins", "range", Meaning::kRange},
    {"builtins", "xrange", Meaning::kRange},
    {"builtins", "getattr", Meaning::kGetattr},
    {"_codecs", "encode", Meaning::kCodecsEncode},
    {"argparse", "Namespace", Meaning::kNamespace},
    {"types", "SimpleNamespace", Meaning::kNamespace},
    {"_io", "BytesIO", Meaning::kBytesIo},
    {"signal", "Signals", Meaning::kOpaque},
    {"numpy.core.multiarray", "_reconstruct", Meaning::kNumpyReconstruct},
    {"numpy._core.multiarray", "_reconstruct", Meaning::kNumpyReconstruct},
    {"numpy.core.multiarray", "scalar", Meaning::kNumpyScalar},
    {"numpy._core.multiarray", "scalar", Meaning::kNumpyScalar},
    {"numpy", "ndarray", Meaning::kNumpyArray},
    {"numpy", "dtype", Meaning::kNumpyDType},
    {"torch", "Size", Meaning::kTorchSize},
    {"torch", "device", Meaning::kTorchDevice},
    {"torch", "Tensor", Meaning::kTensorClass},
    {"torch._C", "Generator", Meaning::kOpaque},
    {"torch.storage", "TypedStorage", Meaning::kTorchStorage},
    {"torch.storage", "_TypedStorage", Meaning::kTorchStorage},
    {"torch.storage", "UntypedStorage", Meaning::kUntypedStorage},
    {"torch.storage", "_UntypedStorage", Meaning::kUntypedStorage},
    {"torch", "UntypedStorage", Meaning::kUntypedStorage},
    {"torch.serialization", "_get_layout", Meaning::kGetLayout},
    {"torch.nn.parameter", "Parameter", Meaning::kParameterClass},
    {"torch._utils", "_rebuild_tensor", Meaning::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", Meaning::kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", Meaning::kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", Meaning::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", Meaning::kRebuildParameter},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", Meaning::kRebuildMeta},
    {"torch._utils", "_rebuild_qtensor", Meaning::kRebuildQuantised},
    {"torch._utils", "_rebuild_sparse_tensor", Meaning::kRebuildSparse},
    {"torch._utils", "_rebuild_nested_tensor", Meaning::kRebuildNested},
    {"torch._utils", "_rebuild_wrapper_subclass", Meaning::kRebuildWrapper},
    {"torch.nested._internal.nested_tensor", "_rebuild_njt", Meaning::kRebuildWrapper},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", Meaning::kRebuildFromCpu},
    {"torch._tensor", "_rebuild_from_type", Meaning::kRebuildFromType},
    {"torch._tensor", "_rebuild_from_type_v2", Meaning::kRebuildFromType},
    {kOldDcp, "Metadata", Meaning::kDcpMetadata},
    {kDcp, "Metadata", Meaning::kDcpMetadata},
    {kMcoreTorch, "MCoreMetadata", Meaning::kDcpMetadata},
    {kOldDcp, "TensorStorageMetadata", Meaning::kDcpTensor},
    {kDcp, "TensorStorageMetadata", Meaning::kDcpTensor},
    {kOldDcp, "ChunkStorageMetadata", Meaning::kDcpChunk},
    {kDcp, "ChunkStorageMetadata", Meaning::kDcpChunk},
    {kOldDcp, "BytesStorageMetadata", Meaning::kDcpBytes},
    {kDcp, "BytesStorageMetadata", Meaning::kDcpBytes},
    {kOldDcp, "MetadataIndex", Meaning::kDcpIndex},
    {kDcp, "MetadataIndex", Meaning::kDcpIndex},
    {kSharded, "TensorProperties", Meaning::kDcpProperties},
    {kDcp, "TensorProperties", Meaning::kDcpProperties},
    {kSharded, "MEM_FORMAT_ENCODING", Meaning::kDcpMemoryFormat},
    {kDcp, "_MEM_FORMAT_ENCODING", Meaning::kDcpMemoryFormat},
    {"torch.distributed._shard.checkpoint.filesystem", "_StorageInfo", Meaning::kDcpStorageInfo},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", Meaning::kDcpStorageInfo},
    {kDcp, "StorageMeta", Meaning::kDcpStorageMeta},
    {kPlanner, "SavePlan", Meaning::kOpaque},
    {kPlanner, "WriteItem", Meaning::kOpaque},
    {kPlanner, "WriteItemType", Meaning::kOpaque},
    {kPlanner, "TensorWriteData", Meaning::kOpaque},
    {kMcoreTorch, "MCoreSavePlan", Meaning::kOpaque},
    {"megatron.core.enums", "ModelType", Meaning::kOpaque},
    {"megatron.core.transformer.enums", "AttnBackend", Meaning::kOpaque},
    {"megatron.core.transformer.enums", "CudaGraphScope", Meaning::kOpaque},
    {"megatron.core.transformer.enums", "CudaGraphModule", Meaning::kOpaque},
    {"megatron.core.transformer.enums", "InferenceCudaGraphScope", Meaning::kOpaque},
    {"megatron.core.optimizer.optimizer_config", "OptimizerConfig", Meaning::kOpaque},
    {"megatron.core.rerun_state_machine", "RerunDiagnostic", Meaning::kOpaque},
    {"megatron.core.rerun_state_machine", "RerunMode", Meaning::kOpaque},
    {"megatron.core.rerun_state_machine", "RerunState", Meaning::kOpaque},
};

using Table = std::unordered_map<std::string, Meaning>;

std::string joined(std::string_view module, std::string_view name) {
  std::string out(module);
  out += '\n';  // in no module name
  out += name;
  return out;
}

const Table& table() {
  static const Table kTable = [] {
    Table out;
    for (const Row& row : kRows) out.emplace(joined(row.module, row.name), row.meaning);
    for (const char* module : {"pathlib", "pathlib._local"}) {
      for (const char* name : {"Path", "PurePath", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}) {
        out.emplace(joined(module, name), Meaning::kPath);
      }
    }
    return out;
  }();
  return kTable;
}

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() > tail.size() && text.substr(text.size() - tail.size()) == tail;
}

}  // namespace

Meaning meaning_of(std::string_view module, std::string_view name) {
  // Protocol 2 keeps the names of Python 2.
  if (module == "__builtin__") module = "builtins";
  auto found = table().find(joined(module, name));
  if (found != table().end()) return found->second;
  if (module == "torch" || module == "torch.cuda") {
    if (ends_with(name, "Storage")) return Meaning::kTorchStorage;
    if (module == "torch" && ((torch_dtype_from_name(name) || name.substr(0, 4) == "per_")))
      return Meaning::kTorchDType;
  }
  if (module == "torch._utils" && name.substr(0, 9) == "_rebuild_") return Meaning::kRebuildOther;
  return Meaning::kUnknown;
}

}  // namespace ckpt::pickle
