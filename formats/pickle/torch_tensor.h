// Tensors inside torch's pickles: what a call of `torch._utils._rebuild_*` says (formats.md 3.2).
#pragma once

#include "formats/pickle/pickle.h"
#include "lib/tensor/catalog.h"

namespace ckpt::pickle {

struct TorchTensor {
  tensor::DType dtype = tensor::DType::kFloat32;
  tensor::Shape shape;
  std::vector<uint64_t> stride;      ///< elements
  uint64_t storage_offset = 0;       ///< elements; the offset of a legacy file's storage view is in it
  std::string_view storage_key;      ///< record `data/<key>`
  uint64_t storage_bytes = 0;

  /// Row-major without holes.
  bool contiguous() const;
};

/// An object that would be a tensor (or a Parameter): `read_torch_tensor` applies.
bool is_torch_tensor(const Graph& graph, NodeId id);
/// All numbers checked: elements and bytes can be counted, every element lies in the storage. kUnsupported: sparse,
/// quantised, meta and other kinds, dtypes without a whole byte, named. kAnswerNo: damaged or hostile.
Result<TorchTensor> read_torch_tensor(const Graph& graph, NodeId id);

/// A list or tuple of sizes; also `torch.Size` around one. Nothing for anything else, negative numbers included.
std::optional<tensor::Shape> read_sizes(const Graph& graph, NodeId id);
struct TorchStorage {
  std::string_view key;
  uint64_t bytes = 0;
};
/// What a persistent id of a typed or untyped storage says.
Result<TorchStorage> read_torch_storage(const Graph& graph, NodeId id);
/// The dtype a global names, `torch.float32`; kUnsupported by name for one that has no DType.
Result<tensor::DType> read_torch_dtype(const Graph& graph, NodeId id);

}  // namespace ckpt::pickle
