#include <charconv>
#include <optional>

#include "formats/npy/header.h"
#include "formats/numpy_type.h"
#include "lib/base/checked.h"

namespace ckpt::formats {

using tensor::DType;

namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxRank = 64;

Unexpected malformed(std::string why) { return fail(Code::kCorrupt, "", "malformed .npy header: " + std::move(why)); }
Unexpected unsupported(std::string why) { return fail(Code::kUnsupported, "", std::move(why)); }

/// The literal of a dictionary with the members descr, fortran_order and shape, as Python's repr writes it.
class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  Result<NpyHeader> parse() {
    if (!take('{')) return malformed("no dictionary");
    while (!take('}')) {
      CKPT_TRY_ASSIGN(std::string name, string());
      if (!take(':')) return malformed("a member without a value");
      if (name == "descr" && descr_.empty()) CKPT_TRY(parse_descr());
      else if (name == "fortran_order" && !fortran_order_) CKPT_TRY(parse_fortran_order());
      else if (name == "shape" && !shape_) CKPT_TRY(parse_shape());
      else return malformed("a member that is unknown or given twice");
      if (!take(',') && peek() != '}') return malformed("two members without a comma between them");
    }
    if (peek() != '\0' || at_ != text_.size()) return malformed("something follows the dictionary");
    if (descr_.empty() || !fortran_order_ || !shape_) return malformed("a member is missing");
    NpyHeader out;
    out.shape = std::move(*shape_);
    out.fortran_order = *fortran_order_;
    return out;
  }
  const std::string& descr() const { return descr_; }

 private:
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    peek();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  /// A string without escapes; none of the strings that belong here has any.
  Result<std::string> string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return malformed("a string is missing");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return malformed("a string does not end");
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    if (out.find('\\') != std::string::npos || out.size() > 64) return malformed("a string that does not belong here");
    return out;
  }

  Result<void> parse_descr() {
    if (peek() == '[' || peek() == '(') return unsupported("structured dtypes are not read");
    CKPT_TRY_ASSIGN(descr_, string());
    if (descr_.empty()) return malformed("descr is empty");
    return {};
  }
  Result<void> parse_fortran_order() {
    if (take_word("True")) fortran_order_ = true;
    else if (take_word("False")) fortran_order_ = false;
    else return malformed("fortran_order is neither True nor False");
    return {};
  }
  /// (), (3,), (3, 4); Python 2 wrote (3L, 4L).
  Result<void> parse_shape() {
    tensor::Shape shape;
    if (!take('(')) return malformed("shape is no tuple");
    bool comma = true;
    while (!take(')')) {
      if (!comma || shape.size() >= kMaxRank) return malformed("shape is no tuple of sizes");
      uint64_t size = 0;
      peek();
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc()) return malformed("shape holds something else than sizes");
      at_ = static_cast<size_t>(end - text_.data());
      take_word("L");
      shape.push_back(size);
      comma = take(',');
    }
    if (shape.size() == 1 && !comma) return malformed("shape is no tuple");
    shape_ = std::move(shape);
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string descr_;
  std::optional<bool> fortran_order_;
  std::optional<tensor::Shape> shape_;
};

Result<void> set_type(const std::string& descr, std::optional<DType> as, NpyHeader& out) {
  if (auto type = parse_numpy_type(descr)) {
    out.dtype = type->dtype;
    out.big_endian = type->big_endian;
    return {};
  }
  if (as && !has_numpy_type(*as) && npy_descr(*as) == descr) {
    out.dtype = *as;
    return {};
  }
  // How numpy writes ml_dtypes.bfloat16; its own void type of two bytes is |V2.
  if (descr == "<V2") {
    out.dtype = DType::kBfloat16;
    out.void_type = true;
    return {};
  }
  if (descr == "|O" || descr == "O") return unsupported("dtype object (pickled Python objects) is not read");
  return unsupported("dtype " + descr + " is not a number that tensors hold");
}

}  // namespace

Result<uint64_t> npy_header_bytes(ByteSpan first) {
  ByteReader reader(first);
  auto magic = reader.take(kMagic.size());
  auto major = reader.read<uint8_t>(), minor = reader.read<uint8_t>();
  if (!magic || as_text(*magic) != kMagic || !minor) return fail(Code::kCorrupt, "", "no .npy file");
  if (*major < 1 || *major > 3) return unsupported(".npy version " + std::to_string(*major) + " is not read");
  std::optional<uint32_t> length;
  if (*major == 1) length = reader.read<uint16_t>();
  else length = reader.read<uint32_t>();
  if (!length) return malformed("cut off");
  if (*length > kMaxNpyHeader - kNpyPrefix)
    return unsupported("a .npy header of " + std::to_string(*length) + " bytes is not read");
  return reader.position() + *length;
}

Result<NpyHeader> parse_npy_header(ByteSpan header, std::optional<DType> as) {
  CKPT_TRY_ASSIGN(uint64_t bytes, npy_header_bytes(header));
  if (header.size() < bytes) return malformed("cut off");
  const size_t fixed = header[6] == std::byte{1} ? 10 : 12;
  Literal literal(as_text(header.subspan(fixed, bytes - fixed)));
  CKPT_TRY_ASSIGN(NpyHeader out, literal.parse());
  CKPT_TRY(set_type(literal.descr(), as, out));
  auto count = tensor::element_count(out.shape);
  auto size = count ? checked_mul<uint64_t>(*count, tensor::item_size(out.dtype)) : std::nullopt;
  if (!size || *size > UINT64_MAX / 2) return malformed("more elements than can be counted");
  out.data = bytes;
  return out;
}

}  // namespace ckpt::formats
