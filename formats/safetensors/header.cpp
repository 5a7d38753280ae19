#include "formats/safetensors/header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "lib/base/checked.h"

namespace ckpt::formats {

using tensor::DType;

namespace {

struct Type {
  std::string_view name;
  uint32_t bits;
  std::optional<DType> dtype;
};
constexpr Type kTypes[] = {
    {"BOOL", 8, DType::kBool},
    {"U8", 8, DType::kUint8},
    {"I8", 8, DType::kInt8},
    {"I16", 16, DType::kInt16},
    {"U16", 16, DType::kUint16},
    {"F16", 16, DType::kFloat16},
    {"BF16", 16, DType::kBfloat16},
    {"I32", 32, DType::kInt32},
    {"U32", 32, DType::kUint32},
    {"F32", 32, DType::kFloat32},
    {"I64", 64, DType::kInt64},
    {"U64", 64, DType::kUint64},
    {"F64", 64, DType::kFloat64},
    {"C64", 64, DType::kComplex64},
    {"F8_E4M3", 8, DType::kFloat8E4m3fn},
    {"F8_E5M2", 8, DType::kFloat8E5m2},
    {"F8_E8M0", 8, DType::kFloat8E8m0fnu},
    {"F8_E4M3FNUZ", 8, DType::kFloat8E4m3fnuz},
    {"F8_E5M2FNUZ", 8, DType::kFloat8E5m2fnuz},
    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
};

Unexpected malformed(std::string why) {
  return fail(Code::kCorrupt, "", "malformed safetensors header: " + std::move(why));
}

/// The header as events, since a tree of a header of 100 MB would take many times that. Every event returns whether the
/// header is still as it should be.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string why;

  bool null() override { return stop("a null"); }
  bool boolean(bool) override { return stop("a truth value"); }
  bool number_float(number_float_t, const string_t&) override {
    return stop("a number with a fraction or out of range");
  }
  bool number_integer(number_integer_t) override { return stop("a negative number"); }
  bool binary(binary_t&) override { return stop("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != kInArray) return stop("a number where none belongs");
    if (numbers_.size() >= 64) return stop("a list of more than 64 numbers");
    numbers_.push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == kInMetadata)
      return header.metadata.emplace(key_, value).second || stop("a name in __metadata__ given twice");
    if (depth_ != kInEntry || key_ != "dtype") return stop("a text where none belongs");
    entry_.dtype = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == kOutside) depth_ = kInRoot;
    else if (depth_ == kInRoot) depth_ = key_ == "__metadata__" ? kInMetadata : kInEntry;
    else return stop("an object where none belongs");
    if (depth_ == kInEntry) {
      entry_ = {};
      entry_.name = key_;
      members_ = 0;
    }
    if (depth_ == kInMetadata && std::exchange(has_metadata_, true)) return stop("__metadata__ given twice");
    return true;
  }
  bool end_object() override {
    if (depth_ == kInEntry) {
      if (members_ != 7) return stop("a tensor without dtype, shape or data_offsets");
      header.entries.push_back(std::move(entry_));
    }
    depth_ = depth_ == kInRoot ? kOutside : kInRoot;
    return true;
  }
  bool key(string_t& value) override {
    key_ = value;
    if (depth_ != kInEntry) return true;
    int member = value == "dtype" ? 1 : value == "shape" ? 2 : value == "data_offsets" ? 4 : 0;
    if (member == 0) return stop("an unknown member of a tensor");
    if ((members_ & member) != 0) return stop("a member given twice");
    members_ |= member;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != kInEntry || key_ == "dtype") return stop("a list where none belongs");
    depth_ = kInArray;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    depth_ = kInEntry;
    if (key_ == "shape") {
      entry_.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) return stop("data_offsets are not two");
    entry_.begin = numbers_[0], entry_.end = numbers_[1];
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop("no valid JSON at byte " + std::to_string(position));
  }

 private:
  enum Depth { kOutside, kInRoot, kInMetadata, kInEntry, kInArray };
  bool stop(std::string what) {
    if (why.empty()) why = std::move(what);
    return false;
  }

  Depth depth_ = kOutside;
  std::string key_;
  SafetensorsEntry entry_;
  tensor::Shape numbers_;
  int members_ = 0;
  bool has_metadata_ = false;
};

Result<void> check_size(SafetensorsEntry& entry) {
  const Type* type = nullptr;
  for (const Type& known : kTypes) {
    if (known.name == entry.dtype) type = &known;
  }
  if (type == nullptr)
    return fail(Code::kUnsupported, "", entry.name + " has the dtype " + entry.dtype + ", which is not known");
  entry.known = type->dtype;
  auto count = tensor::element_count(entry.shape);
  auto bits = count ? checked_mul<uint64_t>(*count, type->bits) : std::nullopt;
  if (!bits || *bits % 8 != 0) return malformed(entry.name + " has a size that cannot be counted");
  if (entry.end < entry.begin || entry.end - entry.begin != *bits / 8)
    return malformed(entry.name + " has data_offsets that do not fit its shape");
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t buffer_bytes) {
  if (json.empty() || json[0] != '{') return malformed("it does not start with {");
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events) || !events.why.empty())
    return malformed(events.why);
  SafetensorsHeader out = std::move(events.header);
  std::unordered_set<std::string_view> names;
  for (SafetensorsEntry& entry : out.entries) {
    CKPT_TRY(check_size(entry));
    if (!names.insert(entry.name).second) return malformed("two tensors are called " + entry.name);
  }
  names.clear();
  std::sort(out.entries.begin(), out.entries.end(),
            [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : out.entries) {
    if (entry.begin != at)
      return malformed(entry.name + (entry.begin > at ? " follows a gap" : " overlaps another tensor"));
    at = entry.end;
  }
  if (at != buffer_bytes) {
    return malformed("the tensors end at byte " + std::to_string(at) + " of a buffer of " +
                     std::to_string(buffer_bytes));
  }
  return out;
}

std::optional<std::string_view> safetensors_dtype(DType dtype) {
  for (const Type& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return std::nullopt;
}

}  // namespace ckpt::formats
