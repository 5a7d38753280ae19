#include "formats/torch_dist/record.h"

#include <array>

#include "formats/pickle/writer.h"
#include "lib/base/digest.h"

namespace ckpt::torch_dist {

namespace {

using tensor::DType;
using tensor::Shape;

constexpr const char* kVersionText = "3\n";

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

/// The body of formats.md 3.3; _rebuild_tensor_v3 (storage counted in bytes, dtype behind the hooks) where torch has no
/// typed storage.
std::string tensor_pickle(DType dtype, const Shape& shape) {
  const char* storage = storage_class(dtype);
  const uint64_t count = tensor::element_count(shape).value_or(0);
  pickle::Writer out;
  out.global("torch._utils", storage != nullptr ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.mark();
  out.mark();
  out.text("storage");
  if (storage != nullptr) out.global("torch", storage);
  else out.global("torch.storage", "UntypedStorage");
  out.text("0");
  out.text("cpu");
  out.integer(storage != nullptr ? count : count * item_size(dtype));
  out.tuple();
  out.persistent_id();
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
  out.stop();
  return out.take();
}

uint32_t crc_of(std::string_view text) { return crc32(0, as_bytes(text)); }

}  // namespace

uint32_t record_alignment(uint64_t data_size) { return data_size >= kLargeData ? kLargeAlignment : zip::kTorchAlignment; }

TensorRecord tensor_record(DType dtype, const Shape& shape) {
  TensorRecord out;
  out.pickle = tensor_pickle(dtype, shape);
  const uint64_t bytes = tensor::element_count(shape).value_or(0) * item_size(dtype);
  out.layout.add("archive/data.pkl", out.pickle.size());
  out.layout.add("archive/data/0", bytes, record_alignment(bytes));
  out.layout.add("archive/version", std::string_view(kVersionText).size());
  return out;
}

std::string TensorRecord::head(uint32_t data_crc) const {
  return layout.header(kPickle, crc_of(pickle)) + pickle + layout.header(kData, data_crc);
}

std::string TensorRecord::tail(uint32_t data_crc) const {
  const std::array<uint32_t, 3> crcs = {crc_of(pickle), data_crc, crc_of(kVersionText)};
  return layout.header(kVersion, crcs[kVersion]) + kVersionText + layout.directory(crcs);
}

std::string empty_dict_file() {
  pickle::Writer body;
  body.empty_dict();
  body.stop();
  const std::string pickle = body.take();
  zip::Layout layout;
  layout.add("common/data.pkl", pickle.size());
  layout.add("common/version", std::string_view(kVersionText).size());
  const std::array<uint32_t, 2> crcs = {crc_of(pickle), crc_of(kVersionText)};
  return layout.header(0, crcs[0]) + pickle + layout.header(1, crcs[1]) + kVersionText + layout.directory(crcs);
}

}  // namespace ckpt::torch_dist
