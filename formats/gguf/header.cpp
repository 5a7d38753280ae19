#include "formats/gguf/header.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/base/checked.h"
#include "lib/base/json_writer.h"

namespace ckpt::formats {

using tensor::DType;

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMaxAxes = 8;
constexpr uint64_t kMaxAlignment = 1 << 30;
constexpr int kMaxNesting = 4;           ///< arrays in arrays
constexpr uint64_t kShownElements = 16;  ///< of an array
constexpr size_t kShownText = 16 << 10;  ///< of a string

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4, DType::kFloat32},   {1, "F16", 1, 2, DType::kFloat16},    {2, "Q4_0", 32, 18, {}},
    {3, "Q4_1", 32, 20, {}},             {6, "Q5_0", 32, 22, {}},              {7, "Q5_1", 32, 24, {}},
    {8, "Q8_0", 32, 34, {}},             {9, "Q8_1", 32, 40, {}},              {10, "Q2_K", 256, 84, {}},
    {11, "Q3_K", 256, 110, {}},          {12, "Q4_K", 256, 144, {}},           {13, "Q5_K", 256, 176, {}},
    {14, "Q6_K", 256, 210, {}},          {15, "Q8_K", 256, 292, {}},           {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},         {18, "IQ3_XXS", 256, 98, {}},         {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, {}},          {21, "IQ3_S", 256, 110, {}},          {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, {}},        {24, "I8", 1, 1, DType::kInt8},       {25, "I16", 1, 2, DType::kInt16},
    {26, "I32", 1, 4, DType::kInt32},    {27, "I64", 1, 8, DType::kInt64},     {28, "F64", 1, 8, DType::kFloat64},
    {29, "IQ1_M", 256, 56, {}},          {30, "BF16", 1, 2, DType::kBfloat16}, {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},          {39, "MXFP4", 32, 17, {}},            {40, "NVFP4", 64, 36, {}},
    {41, "Q1_0", 128, 18, {}},
};

Unexpected malformed(std::string why) { return fail(Code::kCorrupt, "", "malformed GGUF header: " + std::move(why)); }

/// Reads front to back; the first time that bytes are missing `short_` is set, and what is then read is zero or empty.
class Parser {
 public:
  explicit Parser(ByteSpan data) : reader_(data) {}

  Result<std::optional<GgufHeader>> parse() {
    auto done = parse_all();
    if (short_) return std::optional<GgufHeader>();
    if (!done) return std::move(done).error();
    return std::optional(std::move(out_));
  }

 private:
  template <class T>
  T number() {
    auto value = reader_.read<T>();
    if (!value) short_ = true;
    return value.value_or(T{});
  }
  /// A count, length or dimension.
  uint64_t size() { return out_.version == 1 ? number<uint32_t>() : number<uint64_t>(); }
  std::string_view text() {
    const uint64_t length = size();
    if (short_) return {};
    auto bytes = reader_.take(length);
    if (!bytes) short_ = true;
    return bytes ? as_text(*bytes) : std::string_view();
  }

  Result<void> parse_all() {
    if (number<uint32_t>() != kMagic && !short_) return malformed("no GGUF file");
    out_.version = number<uint32_t>();
    if (short_) return {};
    if (out_.version > 0xffff) return fail(Code::kUnsupported, "", "is a big-endian GGUF file");
    if (out_.version < 1 || out_.version > 3)
      return fail(Code::kUnsupported, "", "is a GGUF file of version " + std::to_string(out_.version));
    const uint64_t tensors = size(), pairs = size();
    json_.open('{');
    for (uint64_t i = 0; i < pairs && !short_; ++i) CKPT_TRY(parse_pair());
    for (uint64_t i = 0; i < tensors && !short_; ++i) CKPT_TRY(parse_tensor());
    if (short_) return {};
    json_.close();
    out_.metadata = json_.take();
    out_.data = align_up<uint64_t>(reader_.position(), out_.alignment);
    for (GgufTensor& t : out_.tensors) {
      auto offset = checked_add(t.offset, out_.data);
      if (!offset) return malformed(t.name + " lies past what can be counted");
      t.offset = *offset;
    }
    return {};
  }

  Result<void> parse_pair() {
    const std::string key(text());
    const auto type = number<uint32_t>();
    if (short_) return {};
    json_.key_text(key);
    CKPT_TRY_ASSIGN(std::optional<uint64_t> value, parse_value(type, 0));
    if (key == "general.alignment") {
      if (!value || !std::has_single_bit(*value) || *value > kMaxAlignment)
        return malformed("an alignment that is no power of two");
      out_.alignment = *value;
    }
    if (key == "split.count" && value) out_.parts = *value;
    return {};
  }

  template <class T>
  std::optional<uint64_t> integer() {
    const T value = number<T>();
    json_.number(value);
    return value < T{0} ? std::nullopt : std::optional(static_cast<uint64_t>(value));
  }
  template <class T>
  void floating() {
    const T value = number<T>();
    if (std::isfinite(value)) json_.real(value);
    else json_.string(std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
  }

  /// The value as JSON; what it returns is an integer's value, if it is not negative.
  Result<std::optional<uint64_t>> parse_value(uint32_t type, int nesting) {
    switch (type) {
      case 0: return integer<uint8_t>();
      case 1: return integer<int8_t>();
      case 2: return integer<uint16_t>();
      case 3: return integer<int16_t>();
      case 4: return integer<uint32_t>();
      case 5: return integer<int32_t>();
      case 6: floating<float>(); break;
      case 7: json_.boolean(number<uint8_t>() != 0); break;
      case 8: parse_text(); break;
      case 9: CKPT_TRY(parse_array(nesting)); break;
      case 10: return integer<uint64_t>();
      case 11: return integer<int64_t>();
      case 12: floating<double>(); break;
      default: return unknown(type);
    }
    return std::optional<uint64_t>();
  }
  static Unexpected unknown(uint32_t type) { return malformed("a value of the unknown type " + std::to_string(type)); }

  void parse_text() {
    const std::string_view value = text();
    if (value.size() <= kShownText) json_.string(value);
    else json_.string(std::string(value.substr(0, kShownText)) + "...");
  }

  /// An array's type and length.
  Result<std::pair<uint32_t, uint64_t>> begin_array(int nesting) {
    if (nesting >= kMaxNesting) return malformed("arrays nested too deep");
    const auto type = number<uint32_t>();
    return std::pair(type, size());
  }

  Result<void> parse_array(int nesting) {
    CKPT_TRY_ASSIGN(const auto array, begin_array(nesting));
    const auto [type, count] = array;
    if (short_) return {};
    const bool cut = count > kShownElements;
    if (cut) {
      json_.open('{');
      json_.member("elements", count);
      json_.key("first");
    }
    json_.open('[');
    for (uint64_t i = 0; i < std::min(count, kShownElements) && !short_; ++i)
      CKPT_TRY(parse_value(type, nesting + 1));
    json_.close();
    if (!cut) return {};
    json_.close();
    return skip_values(type, count - kShownElements, nesting + 1);
  }

  Result<void> skip_array(int nesting) {
    CKPT_TRY_ASSIGN(const auto array, begin_array(nesting));
    return short_ ? Result<void>() : skip_values(array.first, array.second, nesting + 1);
  }

  Result<void> skip_values(uint32_t type, uint64_t count, int nesting) {
    constexpr uint8_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type < std::size(kSizes) && kSizes[type] != 0) {
      auto bytes = checked_mul<uint64_t>(count, kSizes[type]);
      if (!bytes || !reader_.take(*bytes)) short_ = true;
      return {};
    }
    for (uint64_t i = 0; i < count && !short_; ++i) {
      if (type == 8) text();
      else if (type == 9) CKPT_TRY(skip_array(nesting));
      else return unknown(type);
    }
    return {};
  }

  Result<void> parse_tensor() {
    GgufTensor t;
    t.name = text();
    const auto axes = number<uint32_t>();
    if (axes > kMaxAxes) return malformed("a tensor of " + std::to_string(axes) + " axes");
    for (uint32_t i = 0; i < axes; ++i) t.shape.push_back(size());
    t.type_number = number<uint32_t>();
    t.offset = number<uint64_t>();
    if (short_) return {};
    std::reverse(t.shape.begin(), t.shape.end());
    t.type = find_ggml_type(t.type_number);
    if (t.offset % out_.alignment != 0) return malformed(t.name + " is not aligned");
    if (t.type != nullptr) CKPT_TRY(set_length(t));
    out_.tensors.push_back(std::move(t));
    return {};
  }

  static Result<void> set_length(GgufTensor& t) {
    const GgmlType& type = *t.type;
    if (type.block > 1) {
      if (t.shape.empty() || t.shape.back() % type.block != 0)
        return malformed(t.name + " has rows that are no whole number of blocks");
      auto row = checked_mul<uint64_t>(t.shape.back() / type.block, type.bytes);
      if (!row) return malformed(t.name + " has more elements than can be counted");
      t.shape.back() = *row;
    }
    auto count = tensor::element_count(t.shape);
    auto length = count ? checked_mul<uint64_t>(*count, type.block > 1 ? 1 : type.bytes) : std::nullopt;
    if (!length || *length > UINT64_MAX / 2) return malformed(t.name + " has more elements than can be counted");
    t.length = *length;
    return {};
  }

  ByteReader reader_;
  GgufHeader out_;
  JsonWriter json_;
  bool short_ = false;
};

}  // namespace

const GgmlType* find_ggml_type(uint32_t number) {
  for (const GgmlType& type : kTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

Result<std::optional<GgufHeader>> parse_gguf_header(ByteSpan beginning) { return Parser(beginning).parse(); }

}  // namespace ckpt::formats
