// The manifest from JSON (manifest_write.cpp writes it). Reading takes hostile input: size, nesting and the number of
// values are bounded, every member is checked for type and range, and the error names its place.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/hex.h"
#include "lib/base/json_reader.h"
#include "lib/base/json_text.h"
#include "lib/store/features.h"
#include "lib/store/manifest_checks.h"
#include "lib/store/manifest_fields.h"

namespace ckpt::store {

namespace {

constexpr uint64_t kMaxText = uint64_t{256} << 20;
/// A value costs tens of bytes in memory and two in the text. 65,530 mappings and 32,768 threads make 6 million.
constexpr JsonReader::Limits kLimits = {.depth = 16, .values = 12'000'000};
/// Of an object whose members are in another order than ckpt writes them: its names are listed for looking them up.
constexpr size_t kMaxMembers = 10'000;

int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/// Where a value is: members and elements up to the whole. Each lives as long as its value is read.
struct MemberPath {
  const MemberPath* outer = nullptr;
  const char* name = nullptr;  ///< null: an element
  size_t index = 0;

  /// "process.threads[3].regs"
  std::string text() const {
    std::string out = outer != nullptr ? outer->text() : "";
    if (name == nullptr) return out + fmt::format("[{}]", index);
    return out.empty() ? name : out + "." + name;
  }
};

/// What all archives of one text share. The first fault stops them: from then on every call does nothing.
struct Reading {
  JsonReader json;
  const MemberPath* place = nullptr;
  std::string fault = {};  ///< "process.threads[3].tid: is missing"

  bool failed() const { return !fault.empty() || json.failed(); }
  void fail(std::string_view what) {
    if (!failed()) fault = place == nullptr ? std::string(what) : fmt::format("{}: {}", place->text(), what);
  }
};

/// Reads one object. Members in the order of `describe` are read as they come; at the first that is not where it is
/// looked for, all are listed with where they are.
class JsonIn {
 public:
  template <class T>
  using Of = T&;

  /// `reading.json` has shown the object.
  explicit JsonIn(Reading& reading) : reading_(reading), json_(reading.json) {
    json_.enter();
    start_ = json_.position();
  }

  JsonIn& optional() {
    next_is_optional_ = true;
    return *this;
  }
  template <class I>
  void number(const char* name, I& value, int64_t low = std::numeric_limits<int64_t>::min(),
              int64_t high = std::numeric_limits<int64_t>::max()) {
    with(name, [&] { read_number(value, low, high); });
  }
  void hex(const char* name, uint64_t& value) {
    with(name, [&] { read_hex(value); });
  }
  void flag(const char* name, bool& value) {
    with(name, [&] {
      const char kind = json_.peek();
      if (kind != 't' && kind != 'f') return reading_.fail("is not true or false");
      value = json_.boolean();
    });
  }
  void text(const char* name, std::string& value) {
    with(name, [&] { read_text(value); });
  }
  void octets(const char* name, std::vector<uint8_t>& value, size_t least, size_t most) {
    with(name, [&] {
      const bool is_text = json_.peek() == '"';
      const std::string_view digits = is_text ? json_.string() : std::string_view();
      value.resize(digits.size() / 2);
      if (!is_text || !bytes_of_hex(digits, std::as_writable_bytes(std::span(value))))
        return reading_.fail("is not a string of hex digits");
      if (value.size() < least || value.size() > most) return reading_.fail("has the wrong number of bytes");
    });
  }
  template <class I>
  void numbers(const char* name, std::vector<I>& values) {
    each(name, values, [&](I& v) { read_number(v); });
  }
  template <class I, size_t N>
  void numbers(const char* name, std::array<I, N>& values) {
    const bool is_optional = next_is_optional_;
    with(name, [&, is_optional] {
      std::vector<I> read;
      read_elements(read, [&](I& v) { read_number(v); });
      if (read.empty() && is_optional) return;
      if (read.size() != N) return reading_.fail(fmt::format("has {} elements, not {}", read.size(), N));
      std::copy(read.begin(), read.end(), values.begin());
    });
  }
  void hexes(const char* name, std::vector<uint64_t>& values) {
    each(name, values, [&](uint64_t& v) { read_hex(v); });
  }
  void texts(const char* name, std::vector<std::string>& values) {
    each(name, values, [&](std::string& v) { read_text(v); });
  }
  void texts(const char* name, VmFlags& flags) {
    with(name, [&] {
      if (json_.peek() != '[') return reading_.fail("is not an array");
      flags = {};
      MemberPath here{reading_.place};
      reading_.place = &here;
      json_.enter();
      for (; !reading_.failed() && json_.next('[', here.index == 0); ++here.index) {
        if (json_.peek() != '"') reading_.fail("is not a string");
        else if (!flags.add(json_.string())) reading_.fail("does not have two letters");
      }
      reading_.place = here.outer;
    });
  }
  template <class E, size_t N>
  void choice(const char* name, E& value, const std::array<const char*, N>& names) {
    with(name, [&] {
      if (json_.peek() != '"') return reading_.fail("is not a string");
      const std::string_view text = json_.string();
      const auto found = std::find(names.begin(), names.end(), text);
      if (found == names.end()) return reading_.fail("is not a value that this ckpt knows");
      value = static_cast<E>(found - names.begin());
    });
  }
  template <class T>
  void object(const char* name, T& value) {
    with(name, [&] { read_object([&](JsonIn& sub) { describe<JsonIn>(sub, value); }); });
  }
  template <class T, class F>
  void list(const char* name, std::vector<T>& values, F one) {
    each(name, values, [&](T& v) { read_object([&](JsonIn& sub) { one(sub, v); }); });
  }
  template <class T>
  void list(const char* name, std::vector<T>& values) {
    list(name, values, [](JsonIn& sub, T& value) { describe<JsonIn>(sub, value); });
  }

  /// Behind the object, once all its members are read: what is not known is passed over, what is there twice is a
  /// fault.
  void finish() {
    if (reading_.failed()) return;
    if (!listed_ && json_.next('{', first_)) list_members();
    if (listed_) json_.seek(end_);
  }

 private:
  struct Member {
    std::string name;
    JsonReader::Position value;
    bool operator<(const Member& other) const { return name < other.name; }
  };

  void list_members() {
    listed_ = true;
    json_.seek(start_);
    for (bool first = true; json_.next('{', first); first = false) {
      std::string name(json_.key());
      if (members_.size() == kMaxMembers) return reading_.fail(fmt::format("has more than {} members", kMaxMembers));
      members_.push_back({std::move(name), json_.position()});
      json_.skip();
    }
    end_ = json_.position();
    std::sort(members_.begin(), members_.end());
    auto same = [](const Member& a, const Member& b) { return a.name == b.name; };
    auto twice = std::adjacent_find(members_.begin(), members_.end(), same);
    if (twice != members_.end()) reading_.fail(fmt::format("has two members '{}'", twice->name));
  }

  /// To the value of the member; false: it is not there.
  bool find(const char* name) {
    if (!listed_) {
      const bool more = json_.next('{', first_);
      first_ = false;
      if (more && json_.try_key(name)) return true;
      list_members();
    }
    const auto it = std::lower_bound(members_.begin(), members_.end(), Member{name, {}});
    if (it == members_.end() || it->name != name) return false;
    json_.seek(it->value);
    return true;
  }

  /// Runs `read` at the member, which must be there unless it was announced by `optional`.
  template <class F>
  void with(const char* name, F read) {
    const bool is_optional = std::exchange(next_is_optional_, false);
    if (reading_.failed()) return;
    const bool there = find(name);
    if (reading_.failed()) return;
    const MemberPath here{reading_.place, name};
    reading_.place = &here;
    if (there) read();
    else if (!is_optional) reading_.fail("is missing");
    reading_.place = here.outer;
  }
  template <class T, class F>
  void each(const char* name, std::vector<T>& values, F read) {
    with(name, [&] { read_elements(values, read); });
  }
  template <class T, class F>
  void read_elements(std::vector<T>& values, F read) {
    if (json_.peek() != '[') return reading_.fail("is not an array");
    values.clear();
    MemberPath here{reading_.place};
    reading_.place = &here;
    json_.enter();
    for (; !reading_.failed() && json_.next('[', here.index == 0); ++here.index) {
      if (here.index == 0) values.reserve(4);  // most lists are short, and there may be 100,000 of them
      read(values.emplace_back());
    }
    reading_.place = here.outer;
  }
  template <class F>
  void read_object(F read) {
    if (json_.peek() != '{') return reading_.fail("is not an object");
    JsonIn sub(reading_);
    read(sub);
    sub.finish();
  }
  template <class I>
  void read_number(I& value, int64_t low = std::numeric_limits<int64_t>::min(),
                   int64_t high = std::numeric_limits<int64_t>::max()) {
    const auto number = json_.peek() == 'n' ? json_.number() : std::nullopt;
    if (!number || (number->negative && number->magnitude > uint64_t{1} << 63))
      return reading_.fail("is not an integer");
    const std::optional<I> n = number->negative ? checked_cast<I>(static_cast<int64_t>(-number->magnitude))
                                                : checked_cast<I>(number->magnitude);
    if (!n || std::cmp_less(*n, low) || (high != std::numeric_limits<int64_t>::max() && std::cmp_greater(*n, high))) {
      return reading_.fail("is out of range");
    }
    value = *n;
  }
  void read_hex(uint64_t& value) {
    if (json_.peek() != '"') return reading_.fail("is not a string of hex digits");
    const std::string_view text = json_.string();
    bool ok = text.size() > 2 && text.size() <= 18 && text[0] == '0' && text[1] == 'x';
    uint64_t out = 0;
    for (size_t i = 2; ok && i < text.size(); ++i) {
      int digit = hex_digit(text[i]);
      ok = digit >= 0;
      out = out << 4 | static_cast<uint64_t>(digit & 15);
    }
    if (!ok) return reading_.fail("is not 0x and hex digits");
    value = out;
  }
  void read_text(std::string& value) {
    const char kind = json_.peek();
    if (kind == '"') value = json_.string();
    else if (kind != '{' || !read_bytes(value)) return reading_.fail("is not a string");
    // Paths and names go to system calls, which would see only what lies before it.
    if (value.find('\0') != std::string::npos) reading_.fail("holds a NUL character");
  }
  /// {"hex": ".."}
  bool read_bytes(std::string& value) {
    json_.enter();
    if (!json_.next('{', true) || json_.key() != "hex" || json_.peek() != '"') return false;
    const std::string_view digits = json_.string();
    value.resize(digits.size() / 2);
    return bytes_of_hex(digits, std::as_writable_bytes(std::span(value))) && !json_.next('{', false);
  }

  Reading& reading_;
  JsonReader& json_;
  JsonReader::Position start_, end_;
  bool first_ = true;
  bool next_is_optional_ = false;
  bool listed_ = false;
  std::vector<Member> members_;  ///< once `listed_`, by name
};

Result<void> check_schema(const std::string& schema) {
  if (schema.rfind("ckpt.image/", 0) != 0) return fail(Code::kCorrupt, "", "schema: is not ckpt.image");
  if (schema != kImageSchema) {
    return fail(Code::kUnsupported, "", "has the format " + schema + ", this ckpt knows " + kImageSchema);
  }
  return {};
}

}  // namespace

Result<Manifest> parse_manifest(std::string_view text) {
  if (text.size() > kMaxText) return fail(Code::kCorrupt, "", fmt::format("is larger than {} bytes", kMaxText));
  Reading reading{JsonReader(text, kLimits)};
  if (reading.json.peek() != '{') {
    reading.json.skip();
    return fail(Code::kCorrupt, "", reading.json.failed() ? reading.json.fault() : "is not a JSON object");
  }
  Manifest out;
  JsonIn in(reading);
  std::string schema;
  in.text("schema", schema);
  if (!reading.failed()) CKPT_TRY(check_schema(schema));
  in.optional().texts("features", out.features);
  if (!reading.failed()) CKPT_TRY(check_features(out.features));
  describe<JsonIn>(in, out);
  in.finish();
  if (!reading.failed()) reading.json.finish();
  if (reading.json.failed()) return fail(Code::kCorrupt, "", reading.json.fault());
  if (reading.fault.empty()) reading.fault = check_manifest(out);
  if (!reading.fault.empty()) return fail(Code::kCorrupt, "", reading.fault);
  return out;
}

}  // namespace ckpt::store
