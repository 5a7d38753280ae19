#include "lib/flash/layout.h"

#include <algorithm>
#include <cstring>

#include "lib/base/checked.h"
#include "lib/flash/protocol.h"

namespace ckpt::flash {

namespace {

constexpr uint32_t kLayoutMagic = 0x3159'414c;   ///< "LAY1"
constexpr uint32_t kObjectsMagic = 0x314a'424f;  ///< "OBJ1"
constexpr size_t kMostDims = 64, kMostSteps = 64;

struct TypeSize {
  std::string_view name;
  uint32_t size;
};
constexpr TypeSize kTypes[] = {
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"uint64", 8},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex32", 4},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"float4_e2m1fn_x2", 1},
};

Unexpected damaged(const char* what) { return fail(Code::kCorrupt, "layout", what); }

class Encoder {
 public:
  template <class T>
  void number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    out_.append(value);
  }
  void path(const std::vector<Step>& steps) {
    number(static_cast<uint32_t>(steps.size()));
    for (const Step& step : steps) {
      number(static_cast<uint8_t>(step.kind));
      if (step.kind == Step::Kind::kName)
        text(step.name);
      else
        number(step.number);
    }
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Every read is checked; after the first that fails all others give nothing.
class Decoder {
 public:
  explicit Decoder(ByteSpan bytes) : reader_(bytes) {}
  template <class T>
  T number() {
    auto value = failed_ ? std::nullopt : reader_.read<T>();
    failed_ = !value;
    return value.value_or(T{});
  }
  std::string_view bytes(uint64_t count) {
    auto span = failed_ ? std::nullopt : reader_.take(count);
    failed_ = !span;
    return span ? as_text(*span) : std::string_view();
  }
  std::string text(size_t most) {
    const auto count = number<uint32_t>();
    if (count > most) failed_ = true;
    return std::string(bytes(failed_ ? 0 : count));
  }
  std::vector<uint64_t> numbers(size_t count) {
    std::vector<uint64_t> out;
    for (size_t i = 0; i < count && !failed_; ++i) out.push_back(number<uint64_t>());
    return out;
  }
  std::vector<Step> path() {
    std::vector<Step> out;
    const auto count = number<uint32_t>();
    if (count > kMostSteps) failed_ = true;
    for (uint32_t i = 0; i < count && !failed_; ++i) {
      Step step;
      const auto kind = number<uint8_t>();
      if (kind > static_cast<uint8_t>(Step::Kind::kIndex)) failed_ = true;
      step.kind = static_cast<Step::Kind>(kind);
      if (kind == 0)
        step.name = text(kMostText);
      else
        step.number = number<int64_t>();
      out.push_back(std::move(step));
    }
    return out;
  }
  bool failed() const { return failed_; }
  size_t remaining() const { return reader_.remaining(); }

 private:
  ByteReader reader_;
  bool failed_ = false;
};

std::optional<uint64_t> elements(const std::vector<uint64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  return checked_product(shape);
}

/// Sets item size and bytes.
Result<void> measure(LayoutTensor& tensor) {
  tensor.item_size = item_size_of(tensor.dtype);
  if (tensor.item_size == 0) return fail(Code::kUsage, tensor.key, "dtype " + tensor.dtype + " is not known");
  const size_t dims = tensor.shape.size();
  if (dims > kMostDims || tensor.global_shape.size() != dims || tensor.global_offset.size() != dims)
    return fail(Code::kUsage, tensor.key, "shape, global shape and offset have different lengths");
  for (size_t axis = 0; axis < dims; ++axis) {
    auto end = checked_add(tensor.global_offset[axis], tensor.shape[axis]);
    if (!end || *end > tensor.global_shape[axis])
      return fail(Code::kUsage, tensor.key, "its part lies outside of its global shape");
  }
  auto count = elements(tensor.shape), whole = elements(tensor.global_shape);
  auto bytes = count ? checked_mul<uint64_t>(*count, tensor.item_size) : std::nullopt;
  if (!bytes || *bytes > kMostSegmentBytes || !whole) return fail(Code::kUsage, tensor.key, "is too large");
  tensor.bytes = *bytes;
  return {};
}

}  // namespace

uint32_t item_size_of(std::string_view dtype) {
  for (const TypeSize& type : kTypes) {
    if (type.name == dtype) return type.size;
  }
  return 0;
}

Result<void> place_tensors(BufferLayout& layout) {
  uint64_t at = 0;
  for (LayoutTensor& tensor : layout.tensors) {
    CKPT_TRY(measure(tensor));
    tensor.offset = at;
    at = align_up(at + tensor.bytes, kTensorAlignment);
    if (at > kMostSegmentBytes) return fail(Code::kUsage, tensor.key, "the state is too large");
  }
  layout.data_bytes = at;
  return {};
}

std::string encode_layout(const BufferLayout& layout) {
  Encoder out;
  out.number(kLayoutMagic);
  out.number(static_cast<uint32_t>(layout.tensors.size()));
  out.number(layout.data_bytes);
  for (const LayoutTensor& tensor : layout.tensors) {
    out.text(tensor.key);
    out.text(tensor.dtype);
    out.number(static_cast<uint32_t>(tensor.shape.size()));
    for (const auto* numbers : {&tensor.shape, &tensor.global_shape, &tensor.global_offset}) {
      for (uint64_t number : *numbers) out.number(number);
    }
    out.number(tensor.offset);
    out.path(tensor.path);
  }
  return out.take();
}

Result<BufferLayout> decode_layout(ByteSpan bytes) {
  if (bytes.size() > kMostLayoutBytes) return damaged("is too large");
  Decoder in(bytes);
  BufferLayout out;
  const auto magic = in.number<uint32_t>(), count = in.number<uint32_t>();
  out.data_bytes = in.number<uint64_t>();
  if (in.failed() || magic != kLayoutMagic || count > kMostTensors || out.data_bytes > kMostSegmentBytes)
    return damaged("does not begin as one");
  uint64_t end = 0;
  for (uint32_t i = 0; i < count; ++i) {
    LayoutTensor tensor;
    tensor.key = in.text(kMostText);
    tensor.dtype = in.text(64);
    const auto dims = in.number<uint32_t>();
    if (dims > kMostDims) return damaged("has a tensor of too many dimensions");
    tensor.shape = in.numbers(dims);
    tensor.global_shape = in.numbers(dims);
    tensor.global_offset = in.numbers(dims);
    tensor.offset = in.number<uint64_t>();
    tensor.path = in.path();
    if (in.failed()) return damaged("is cut short");
    if (auto fits = measure(tensor); !fits) return std::move(fits).error().with_code(Code::kCorrupt);
    auto last = checked_add(tensor.offset, tensor.bytes);
    if (tensor.offset < end || tensor.offset % kTensorAlignment != 0 || !last || *last > out.data_bytes)
      return damaged("has tensors that overlap or lie outside of the buffer");
    end = *last;
    out.tensors.push_back(std::move(tensor));
  }
  if (in.remaining() != 0) return damaged("has bytes behind its end");
  return out;
}

std::string encode_objects(const std::vector<StoredObject>& objects) {
  Encoder out;
  out.number(kObjectsMagic);
  out.number(static_cast<uint32_t>(objects.size()));
  for (const StoredObject& object : objects) {
    out.text(object.key);
    out.number(static_cast<uint8_t>(object.kind));
    out.path(object.path);
    out.text(object.bytes);
  }
  return out.take();
}

Result<std::vector<StoredObject>> decode_objects(ByteSpan bytes) {
  std::vector<StoredObject> out;
  if (bytes.empty()) return out;
  Decoder in(bytes);
  const auto magic = in.number<uint32_t>(), count = in.number<uint32_t>();
  if (in.failed() || magic != kObjectsMagic || count > kMostTensors)
    return fail(Code::kCorrupt, "objects", "do not begin as they should");
  for (uint32_t i = 0; i < count; ++i) {
    StoredObject object;
    object.key = in.text(kMostText);
    const auto kind = in.number<uint8_t>();
    object.kind = static_cast<ObjectKind>(kind);
    object.path = in.path();
    object.bytes = in.bytes(in.number<uint32_t>());
    if (in.failed() || kind > 2) return fail(Code::kCorrupt, "objects", "are cut short");
    out.push_back(std::move(object));
  }
  if (in.remaining() != 0) return fail(Code::kCorrupt, "objects", "have bytes behind their end");
  return out;
}

}  // namespace ckpt::flash
