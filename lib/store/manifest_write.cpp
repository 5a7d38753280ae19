// The manifest as JSON: the other half of manifest_json.cpp.
#include "lib/base/hex.h"
#include "lib/base/json_text.h"
#include "lib/base/json_writer.h"
#include "lib/store/features.h"
#include "lib/store/image.h"
#include "lib/store/manifest_fields.h"

namespace ckpt::store {

namespace {

constexpr size_t kWidth = 120;

class JsonOut {
 public:
  template <class T>
  using Of = const T&;

  explicit JsonOut(JsonWriter& json) : json_(json) {}

  JsonOut& optional() { return *this; }

  template <class I>
  void number(const char* name, I value, int64_t = 0, int64_t = 0) {
    json_.member(name, value);
  }
  void hex(const char* name, uint64_t value) {
    json_.key(name);
    json_.hex(value);
  }
  void flag(const char* name, bool value) {
    json_.member(name, value);
  }
  void text(const char* name, const std::string& value) {
    json_.key(name);
    write_text(value);
  }
  void octets(const char* name, const std::vector<uint8_t>& value, size_t, size_t) {
    json_.key(name);
    write_hex({reinterpret_cast<const char*>(value.data()), value.size()});
  }
  template <class C>
  void numbers(const char* name, const C& values) {
    each(name, values, [&](auto value) { json_.number(value); });
  }
  void hexes(const char* name, const std::vector<uint64_t>& values) {
    each(name, values, [&](uint64_t value) { json_.hex(value); });
  }
  void texts(const char* name, const std::vector<std::string>& values) {
    each(name, values, [&](const std::string& value) { write_text(value); });
  }
  void texts(const char* name, const VmFlags& flags) {
    json_.key(name);
    json_.open('[');
    for (size_t i = 0; i < flags.size(); ++i) write_text(flags[i]);
    json_.close();
  }
  template <class E, size_t N>
  void choice(const char* name, E value, const std::array<const char*, N>& names) {
    auto index = static_cast<size_t>(value);
    CKPT_ASSERT(index < N);
    json_.key(name);
    write_text(names[index]);
  }
  template <class T>
  void object(const char* name, const T& value) {
    json_.key(name);
    json_.open('{');
    describe<JsonOut>(*this, value);
    json_.close();
  }
  template <class T, class F>
  void list(const char* name, const std::vector<T>& values, F one) {
    each(name, values, [&](const T& value) {
      json_.open('{');
      one(*this, value);
      json_.close();
    });
  }
  template <class T>
  void list(const char* name, const std::vector<T>& values) {
    list(name, values, [](JsonOut& sub, const T& value) { describe<JsonOut>(sub, value); });
  }

 private:
  template <class C, class F>
  void each(const char* name, const C& values, F write) {
    json_.key(name);
    json_.open('[');
    for (const auto& value : values) write(value);
    json_.close();
  }
  /// Names of files and arguments are bytes; those that are no UTF-8 become {"hex": ".."}.
  void write_text(std::string_view value) {
    scratch_.clear();
    if (try_append_ascii_json_string(scratch_, value)) return json_.scalar(scratch_);
    json_.open('{');
    json_.key("hex");
    write_hex(value);
    json_.close();
  }
  void write_hex(std::string_view bytes) {
    scratch_ = '"';
    append_hex(scratch_, as_bytes(bytes));
    scratch_ += '"';
    json_.scalar(scratch_);
  }

  JsonWriter& json_;
  std::string scratch_;
};

/// About the bytes of text, so that it is not copied as it grows.
size_t expected_size(const TreeImage& tree) {
  size_t out = 64 << 10;
  for (const ProcessImage& p : tree.processes) out += 4096 + 400 * p.maps.size() + 3200 * p.threads.size();
  return out + 900 * tree.descriptors.size() + 512 * tree.files.size();
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  // ASCII only: a manifest shown on a terminal must not drive it.
  JsonWriter json(kWidth, expected_size(manifest.tree));
  JsonOut out(json);
  json.open('{');
  out.text("schema", kImageSchema);
  out.texts("features", manifest.features);
  describe<JsonOut>(out, manifest);
  json.close();
  return std::move(json).finish();
}

}  // namespace ckpt::store
