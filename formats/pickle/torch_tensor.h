// Tensors inside torch's pickles: what a call of `torch._utils._rebuild_*` says (formats.md 3.2).
#pragma once

#include "formats/pickle/pickle.h"
#include "lib/tensor/catalog.h"

namespace ckpt::pickle {

/// A dtype of torch. Most are DTypes; of the others (quantised ones, bits) the bytes are carried
/// as those of an integer type.
struct TorchDType {
  tensor::DType dtype = tensor::DType::kFloat32;
  std::string_view name;             ///< "qint8"
  bool carried = false;              ///< `dtype` only carries its bytes
  bool packed = false;               ///< several elements to a byte: neither sizes nor strides are those of the bytes
};
/// By torch's name for it, without the module.
std::optional<TorchDType> torch_dtype_from_name(std::string_view name);

struct TorchTensor {
  tensor::DType dtype = tensor::DType::kFloat32;
  TorchDType torch_dtype;
  tensor::Shape shape;               ///< of a packed one: the bytes of its storage
  tensor::Shape logical_shape;       ///< as torch has it
  std::vector<uint64_t> stride;      ///< elements
  bool conjugated = false;           ///< stored without the conjugation that it stands for
  bool negated = false;              ///< stored with the other sign
  NodeId quantiser = kNoNode;        ///< (scheme, scale, zero point) or (scheme, scales, zero points, axis)
  uint64_t storage_offset = 0;       ///< elements; the offset of a legacy file's storage view is in it
  std::string_view storage_key;      ///< record `data/<key>`
  uint64_t storage_bytes = 0;

  /// Row-major without holes.
  bool contiguous() const;
};

/// An object that would be a tensor (or a Parameter): `read_torch_tensor` applies.
bool is_torch_tensor(const Graph& graph, NodeId id);
/// All numbers checked: elements and bytes can be counted, every element lies in the storage. kUnsupported: sparse,
/// meta and other kinds without a storage of their own, named. kCorrupt: damaged or hostile.
Result<TorchTensor> read_torch_tensor(const Graph& graph, NodeId id);

/// The function that would make a tensor and its arguments; `_rebuild_from_type_v2(function, type, arguments, state)`
/// is taken apart. Null: no call of a name.
struct RebuildCall {
  const GlobalName* function = nullptr;
  std::span<const NodeId> args;
  NodeId type = kNoNode, state = kNoNode;  ///< of a subclass, or of an instance with attributes
};
RebuildCall rebuild_call(const Graph& graph, NodeId id);

/// A list or tuple of sizes; also `torch.Size` around one. Nothing for anything else, negative numbers included.
std::optional<tensor::Shape> read_sizes(const Graph& graph, NodeId id);
struct TorchStorage {
  std::string_view key;
  uint64_t bytes = 0;
  uint32_t item = 1;   ///< bytes of an element, in which legacy files count
};
/// What a persistent id of a typed or untyped storage says.
Result<TorchStorage> read_torch_storage(const Graph& graph, NodeId id);
/// The dtype a global names, `torch.float32`; kUnsupported by name for one that is not known.
Result<TorchDType> read_torch_dtype(const Graph& graph, NodeId id);

}  // namespace ckpt::pickle
