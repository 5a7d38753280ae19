// The manifest as JSON and back. Reading takes hostile input: the text is bounded before it becomes a tree, every member
// is checked for type and range, and the error names its place.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/checked.h"
#include "lib/base/json_layout.h"
#include "lib/store/manifest_fields.h"

namespace ckpt::store {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kMaxText = uint64_t{256} << 20;
constexpr size_t kMaxDepth = 16;
/// A value costs tens of bytes in memory and two in the text. 65,530 mappings and 32,768 threads make 6 million.
constexpr size_t kMaxValues = 12'000'000;
constexpr const char* kSchema = "ckpt.image/3";

bool is_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    auto byte = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
    unsigned char c = byte(i);
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (n == 0 || s.size() - i < n) return false;
    for (size_t k = 1; k < n; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    // Overlong forms, surrogates, past U+10FFFF.
    if ((c == 0xe0 && byte(i + 1) < 0xa0) || (c == 0xed && byte(i + 1) > 0x9f)) return false;
    if ((c == 0xf0 && byte(i + 1) < 0x90) || (c == 0xf4 && byte(i + 1) > 0x8f)) return false;
    i += n;
  }
  return true;
}

std::string hex_of(const uint8_t* data, size_t size) {
  static const char* kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    out += kDigits[data[i] >> 4];
    out += kDigits[data[i] & 15];
  }
  return out;
}

int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/// Lower-case digits, two a byte.
std::optional<std::vector<uint8_t>> bytes_of_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<uint8_t> out(text.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return out;
}

class JsonOut {
 public:
  template <class T>
  using Of = const T&;

  explicit JsonOut(OrderedJson& node) : node_(node) {}

  template <class I>
  void number(const char* name, I value, int64_t = 0, int64_t = 0) { node_[name] = value; }
  void hex(const char* name, uint64_t value) { node_[name] = fmt::format("{:#x}", value); }
  void flag(const char* name, bool value) { node_[name] = value; }
  void text(const char* name, const std::string& value) { node_[name] = text_json(value); }
  void octets(const char* name, const std::vector<uint8_t>& value, size_t, size_t) {
    node_[name] = hex_of(value.data(), value.size());
  }
  template <class C>
  void numbers(const char* name, const C& values) { node_[name] = values; }
  void hexes(const char* name, const std::vector<uint64_t>& values) {
    OrderedJson& out = node_[name] = OrderedJson::array();
    for (uint64_t v : values) out.push_back(fmt::format("{:#x}", v));
  }
  void texts(const char* name, const std::vector<std::string>& values) {
    OrderedJson& out = node_[name] = OrderedJson::array();
    for (const std::string& v : values) out.push_back(text_json(v));
  }
  template <class E, size_t N>
  void choice(const char* name, E value, const std::array<const char*, N>& names) {
    auto index = static_cast<size_t>(value);
    CKPT_ASSERT(index < N);
    node_[name] = names[index];
  }
  template <class T>
  void object(const char* name, const T& value) {
    JsonOut sub(node_[name] = OrderedJson::object());
    describe<JsonOut>(sub, value);
  }
  template <class T, class F>
  void list(const char* name, const std::vector<T>& values, F each) {
    OrderedJson& out = node_[name] = OrderedJson::array();
    for (const T& value : values) {
      out.push_back(OrderedJson::object());
      JsonOut sub(out.back());
      each(sub, value);
    }
  }
  template <class T>
  void list(const char* name, const std::vector<T>& values) {
    list(name, values, [](JsonOut& sub, const T& value) { describe<JsonOut>(sub, value); });
  }

 private:
  /// Names of files and arguments are bytes; those that are no UTF-8 become {"hex": ".."}.
  static OrderedJson text_json(const std::string& value) {
    if (is_utf8(value)) return value;
    return {{"hex", hex_of(reinterpret_cast<const uint8_t*>(value.data()), value.size())}};
  }
  OrderedJson& node_;
};

/// Reads one object. The first fault stops it: from then on every call does nothing.
class JsonIn {
 public:
  template <class T>
  using Of = T&;

  struct State {
    std::string place;  ///< "process.threads[3].regs"
    std::string fault;  ///< "process.threads[3].tid: is missing"
  };

  JsonIn(const Json& node, State& state) : node_(node), state_(state) {}

  template <class I>
  void number(const char* name, I& value, int64_t low = std::numeric_limits<int64_t>::min(),
              int64_t high = std::numeric_limits<int64_t>::max()) {
    with(name, [&](const Json& j) { read_number(j, value, low, high); });
  }
  void hex(const char* name, uint64_t& value) {
    with(name, [&](const Json& j) { read_hex(j, value); });
  }
  void flag(const char* name, bool& value) {
    with(name, [&](const Json& j) {
      if (!j.is_boolean()) return fault("is not true or false");
      value = j.get<bool>();
    });
  }
  void text(const char* name, std::string& value) {
    with(name, [&](const Json& j) { read_text(j, value); });
  }
  void octets(const char* name, std::vector<uint8_t>& value, size_t least, size_t most) {
    with(name, [&](const Json& j) {
      auto bytes = j.is_string() ? bytes_of_hex(j.get_ref<const std::string&>()) : std::nullopt;
      if (!bytes) return fault("is not a string of hex digits");
      if (bytes->size() < least || bytes->size() > most) return fault("has the wrong number of bytes");
      value = std::move(*bytes);
    });
  }
  template <class I>
  void numbers(const char* name, std::vector<I>& values) {
    each(name, values, [&](const Json& j, I& v) { read_number(j, v); });
  }
  template <class I, size_t N>
  void numbers(const char* name, std::array<I, N>& values) {
    std::vector<I> read;
    numbers(name, read);
    if (failed()) return;
    with(name, [&](const Json&) {
      if (read.size() != N) return fault(fmt::format("has {} elements, not {}", read.size(), N));
      std::copy(read.begin(), read.end(), values.begin());
    });
  }
  void hexes(const char* name, std::vector<uint64_t>& values) {
    each(name, values, [&](const Json& j, uint64_t& v) { read_hex(j, v); });
  }
  void texts(const char* name, std::vector<std::string>& values) {
    each(name, values, [&](const Json& j, std::string& v) { read_text(j, v); });
  }
  template <class E, size_t N>
  void choice(const char* name, E& value, const std::array<const char*, N>& names) {
    with(name, [&](const Json& j) {
      if (!j.is_string()) return fault("is not a string");
      for (size_t i = 0; i < N; ++i) {
        if (j.get_ref<const std::string&>() == names[i]) {
          value = static_cast<E>(i);
          return;
        }
      }
      fault("is not a value that this ckpt knows");
    });
  }
  template <class T>
  void object(const char* name, T& value) {
    with(name, [&](const Json& j) { read_object(j, [&](JsonIn& sub) { describe<JsonIn>(sub, value); }); });
  }
  template <class T, class F>
  void list(const char* name, std::vector<T>& values, F one) {
    each(name, values, [&](const Json& j, T& v) { read_object(j, [&](JsonIn& sub) { one(sub, v); }); });
  }
  template <class T>
  void list(const char* name, std::vector<T>& values) {
    list(name, values, [](JsonIn& sub, T& value) { describe<JsonIn>(sub, value); });
  }

 private:
  bool failed() const { return !state_.fault.empty(); }
  void fault(const std::string& what) {
    if (!failed()) state_.fault = state_.place + ": " + what;
  }

  /// Runs `read` with the place set to the member, which must be there.
  template <class F>
  void with(const char* name, F read) {
    if (failed()) return;
    size_t mark = state_.place.size();
    if (mark != 0) state_.place += '.';
    state_.place += name;
    auto it = node_.find(name);
    if (it == node_.end()) fault("is missing");
    else read(*it);
    state_.place.resize(mark);
  }
  template <class T, class F>
  void each(const char* name, std::vector<T>& values, F read) {
    with(name, [&](const Json& j) {
      if (!j.is_array()) return fault("is not an array");
      values.clear();
      size_t mark = state_.place.size();
      for (size_t i = 0; i < j.size() && !failed(); ++i) {
        state_.place += fmt::format("[{}]", i);
        read(j[i], values.emplace_back());
        state_.place.resize(mark);
      }
    });
  }
  template <class F>
  void read_object(const Json& j, F read) {
    if (!j.is_object()) return fault("is not an object");
    JsonIn sub(j, state_);
    read(sub);
  }
  template <class I>
  void read_number(const Json& j, I& value, int64_t low = std::numeric_limits<int64_t>::min(),
                   int64_t high = std::numeric_limits<int64_t>::max()) {
    std::optional<I> n;
    if (j.is_number_unsigned()) n = checked_cast<I>(j.get<uint64_t>());
    else if (j.is_number_integer()) n = checked_cast<I>(j.get<int64_t>());
    else return fault("is not an integer");
    if (!n || std::cmp_less(*n, low) || (high != std::numeric_limits<int64_t>::max() && std::cmp_greater(*n, high))) {
      return fault("is out of range");
    }
    value = *n;
  }
  void read_hex(const Json& j, uint64_t& value) {
    if (!j.is_string()) return fault("is not a string of hex digits");
    const auto& text = j.get_ref<const std::string&>();
    bool ok = text.size() > 2 && text.size() <= 18 && text[0] == '0' && text[1] == 'x';
    uint64_t out = 0;
    for (size_t i = 2; ok && i < text.size(); ++i) {
      int digit = hex_digit(text[i]);
      ok = digit >= 0;
      out = out << 4 | static_cast<uint64_t>(digit & 15);
    }
    if (!ok) return fault("is not 0x and hex digits");
    value = out;
  }
  void read_text(const Json& j, std::string& value) {
    if (j.is_string()) {
      value = j.get_ref<const std::string&>();
    } else {
      auto hex = j.is_object() && j.size() == 1 ? j.find("hex") : j.end();
      auto bytes = hex != j.end() && hex->is_string() ? bytes_of_hex(hex->get_ref<const std::string&>()) : std::nullopt;
      if (!bytes) return fault("is not a string");
      value.assign(bytes->begin(), bytes->end());
    }
    // Paths and names go to system calls, which would see only what lies before it.
    if (value.find('\0') != std::string::npos) fault("holds a NUL character");
  }

  const Json& node_;
  State& state_;
};

/// Bounds nesting and the number of values before a tree is made of the text.
Result<void> check_shape(std::string_view text) {
  size_t depth = 0, values = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') ++i;
      }
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return fail(Code::kAnswerNo, "", fmt::format("is nested deeper than {}, at byte {}", kMaxDepth, i));
      ++values;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++values;
    }
    if (values > kMaxValues) return fail(Code::kAnswerNo, "", fmt::format("holds more than {} values", kMaxValues));
  }
  return {};
}

/// The first fault found; later ones are not noted.
class Faults {
 public:
  void note(std::string text) {
    if (first_.empty()) first_ = std::move(text);
  }
  void index(const std::string& place, int index, size_t size) {
    if (index < -1 || (index >= 0 && static_cast<size_t>(index) >= size)) note(place + ": refers to an entry that is not there");
  }
  bool none() const { return first_.empty(); }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

void check_maps(const TreeImage& tree, const ProcessImage& p, const std::string& where, Faults& faults) {
  uint64_t end = 0;
  for (size_t i = 0; i < p.maps.size() && faults.none(); ++i) {
    const MemoryMap& m = p.maps[i];
    std::string place = fmt::format("{}.maps[{}]", where, i);
    faults.index(place + ".file", m.file, tree.files.size());
    faults.index(place + ".shared_memory", m.shared_memory, tree.shared_memory.size());
    if (m.start % kPageSize != 0 || m.end % kPageSize != 0) faults.note(place + ": is not made of whole pages");
    if (m.start >= m.end || m.start < end) faults.note(place + ": is empty, overlaps the one before or is out of order");
    end = m.end;
    for (const auto& guard : m.guards) {
      if (guard.first >= guard.second || guard.first < m.start || guard.second > m.end) faults.note(place + ".guards: lie outside it");
    }
  }
}

void check_process(const TreeImage& tree, size_t number, Faults& faults) {
  const ProcessImage& p = tree.processes[number];
  std::string where = fmt::format("tree.processes[{}]", number);
  if (p.threads.empty()) faults.note(where + ".threads: is empty");
  faults.index(where + ".exe", p.exe, tree.files.size());
  faults.index(where + ".cwd", p.cwd, tree.files.size());
  faults.index(where + ".root", p.root, tree.files.size());
  // What is shared belongs to a process further up.
  faults.index(where + ".memory_of", p.memory_of, number);
  faults.index(where + ".descriptors_of", p.descriptors_of, number);
  faults.index(where + ".folders_of", p.folders_of, number);
  faults.index(where + ".handlers_of", p.handlers_of, number);
  check_maps(tree, p, where, faults);
}

/// How many there are of what Descriptor::object counts.
size_t objects_of(const TreeImage& tree, DescriptorKind kind) {
  switch (kind) {
    case DescriptorKind::kSocket: return tree.sockets.size();
    case DescriptorKind::kTerminal: return tree.terminal_ends.size();
    case DescriptorKind::kInotify: return tree.inotifies.size();
    case DescriptorKind::kFanotify: return tree.fanotifies.size();
    case DescriptorKind::kPidfd: return tree.process_handles.size();
    case DescriptorKind::kPosixQueue: return tree.posix_queues.size();
    default: return 0;
  }
}

/// What holds between members: indices lead somewhere, mappings are in order. Empty, or the first fault.
std::string check_relations(const TreeImage& tree) {
  Faults faults;
  if (tree.processes.empty()) return "tree.processes: is empty";
  for (size_t i = 0; i < tree.processes.size() && faults.none(); ++i) check_process(tree, i, faults);
  for (size_t i = 0; i < tree.descriptors.size() && faults.none(); ++i) {
    const Descriptor& d = tree.descriptors[i];
    std::string place = fmt::format("tree.descriptors[{}]", i);
    faults.index(place + ".file", d.file, tree.files.size());
    faults.index(place + ".pipe", d.pipe, tree.pipes.size());
    faults.index(place + ".shared_memory", d.shared_memory, tree.shared_memory.size());
    faults.index(place + ".object", d.object, objects_of(tree, d.kind));
    for (const EpollEntry& entry : d.epoll) {
      faults.index(place + ".epoll", entry.process, tree.processes.size());
      faults.index(place + ".epoll", entry.descriptor, tree.descriptors.size());
    }
    for (const FdSlot& slot : d.fds) faults.index(place + ".fds", slot.process, tree.processes.size());
  }
  return faults.first();
}

bool is_id(const std::string& text) { return text.size() == 32 && bytes_of_hex(text).has_value(); }

std::string check_identity(const Manifest& m) {
  if (!is_id(m.id)) return "id: is not 32 hex digits";
  if (m.parent_path.empty() != m.parent_id.empty()) return "parent_path: goes with parent_id, and one of them is missing";
  if (!m.parent_id.empty() && !is_id(m.parent_id)) return "parent_id: is not 32 hex digits";
  for (size_t i = 0; i < m.files.size(); ++i) {
    const std::string& digest = m.files[i].xxh128;
    if (!digest.empty() && !is_id(digest)) return fmt::format("files[{}].xxh128: is not 32 hex digits", i);
  }
  return "";
}

Result<Manifest> manifest_of(const Json& doc) {
  if (!doc.is_object()) return fail(Code::kAnswerNo, "", "is not a JSON object");
  auto schema = doc.find("schema");
  if (schema == doc.end() || !schema->is_string() || schema->get_ref<const std::string&>().rfind("ckpt.image/", 0) != 0) {
    return fail(Code::kAnswerNo, "", "schema: is not ckpt.image");
  }
  if (*schema != kSchema) {
    return fail(Code::kUnsupported, "", "has the format " + schema->get<std::string>() + ", this ckpt knows " + kSchema);
  }
  Manifest out;
  JsonIn::State state;
  JsonIn in(doc, state);
  describe<JsonIn>(in, out);
  if (state.fault.empty()) state.fault = check_identity(out);
  if (state.fault.empty()) state.fault = check_relations(out.tree);
  if (!state.fault.empty()) return fail(Code::kAnswerNo, "", state.fault);
  return out;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  OrderedJson doc = {{"schema", kSchema}};
  JsonOut out(doc);
  describe<JsonOut>(out, manifest);
  // ASCII only: a manifest shown on a terminal must not drive it.
  return lay_out_json(doc.dump(-1, ' ', true));
}

Result<Manifest> parse_manifest(std::string_view json) {
  if (json.size() > kMaxText) return fail(Code::kAnswerNo, "", fmt::format("is larger than {} bytes", kMaxText));
  CKPT_TRY(check_shape(json));
  try {
    return manifest_of(Json::parse(json));
  } catch (const Json::exception& e) {
    return fail(Code::kAnswerNo, "", std::string("is not JSON: ") + e.what());
  }
}

}  // namespace ckpt::store
