#include "formats/torch_save/tensor_pickle.h"

#include <algorithm>

#include "formats/zip/writer.h"

namespace ckpt::formats {

namespace {

using tensor::DType;
using tensor::Shape;

constexpr uint64_t kLarge = 1 << 20;
constexpr uint32_t kLargeAlignment = 4096;

/// The typed storage of torch for a dtype; null for the dtypes that only have untyped ones.
const char* storage_class(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "BoolStorage";
    case DType::kUint8: return "ByteStorage";
    case DType::kInt8: return "CharStorage";
    case DType::kInt16: return "ShortStorage";
    case DType::kInt32: return "IntStorage";
    case DType::kInt64: return "LongStorage";
    case DType::kFloat16: return "HalfStorage";
    case DType::kBfloat16: return "BFloat16Storage";
    case DType::kFloat32: return "FloatStorage";
    case DType::kFloat64: return "DoubleStorage";
    case DType::kComplex64: return "ComplexFloatStorage";
    case DType::kComplex128: return "ComplexDoubleStorage";
    default: return nullptr;
  }
}

/// In elements; an axis of length 0 counts as 1, as in torch.
Shape row_major_strides(const Shape& shape) {
  Shape out(shape.size());
  uint64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    out[axis] = stride;
    stride *= std::max<uint64_t>(1, shape[axis]);
  }
  return out;
}

}  // namespace

uint32_t storage_alignment(uint64_t bytes) { return bytes >= kLarge ? kLargeAlignment : zip::kTorchAlignment; }

void write_storage_id(pickle::Writer& out, const std::string& module, const std::string& type, const std::string& key,
                      uint64_t count, const std::string& location) {
  out.mark();
  out.text("storage");
  out.global(module, type);
  out.text(key);
  out.text(location);
  out.integer(count);
  out.tuple();
  out.persistent_id();
}

void write_tensor(pickle::Writer& out, DType dtype, const Shape& shape, const std::string& key) {
  const char* storage = storage_class(dtype);
  const uint64_t count = tensor::element_count(shape).value_or(0);
  out.global("torch._utils", storage != nullptr ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.mark();
  if (storage != nullptr) write_storage_id(out, "torch", storage, key, count);
  else write_storage_id(out, "torch.storage", "UntypedStorage", key, count * item_size(dtype));
  out.integer(0);
  out.integers(shape);
  out.integers(row_major_strides(shape));
  out.boolean(false);
  out.global("collections", "OrderedDict");
  out.empty_tuple();
  out.reduce();
  if (storage == nullptr) out.global("torch", std::string(dtype_name(dtype)));
  out.tuple();
  out.reduce();
}

}  // namespace ckpt::formats
