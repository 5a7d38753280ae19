#include "lib/remote/command_backend.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "lib/remote/child_program.h"

namespace ckpt::remote {

namespace {

using Words = std::vector<std::string>;

/// What a program says by its exit status; ckpt's own are the pattern.
constexpr int kExists = 3, kMissing = 4, kDenied = 5, kFull = 9;
constexpr size_t kMaxLine = 8192;

/// How to say it to a program.
class Speech {
 public:
  virtual ~Speech() = default;
  virtual Words list(const std::string& place) const = 0;
  virtual Words read(const std::string& place, uint64_t offset, uint64_t length) const = 0;
  virtual Words write(const std::string& place) const = 0;
  /// Nothing: it has no way to write only what is not there.
  virtual std::optional<Words> create(const std::string& place) const = 0;
  virtual Words remove(const std::string& place) const = 0;
  virtual std::optional<Code> meaning(int status) const = 0;
  /// What `list` calls a place that is an object itself.
  virtual std::string own_name(const std::string& place) const = 0;
};

class Plain final : public Speech {
 public:
  Words list(const std::string& place) const override { return {"list", place}; }
  Words read(const std::string& place, uint64_t offset, uint64_t length) const override {
    return {"read", place, std::to_string(offset), std::to_string(length)};
  }
  Words write(const std::string& place) const override { return {"write", place}; }
  std::optional<Words> create(const std::string& place) const override { return Words{"create", place}; }
  Words remove(const std::string& place) const override { return {"delete", place}; }
  std::optional<Code> meaning(int status) const override {
    if (status == kExists) return Code::kMismatch;
    if (status == kMissing) return Code::kNotFound;
    if (status == kDenied) return Code::kPermission;
    if (status == kFull) return Code::kNoRoom;
    return std::nullopt;
  }
  std::string own_name(const std::string&) const override { return ""; }
};

/// rclone's own verbs and exit codes.
class Rclone final : public Speech {
 public:
  Words list(const std::string& place) const override {
    return {"lsf", "--recursive", "--files-only", "--format", "sp", "--separator", " ", place};
  }
  Words read(const std::string& place, uint64_t offset, uint64_t length) const override {
    return {"cat", "--offset", std::to_string(offset), "--count", std::to_string(length), place};
  }
  Words write(const std::string& place) const override { return {"rcat", place}; }
  std::optional<Words> create(const std::string&) const override { return std::nullopt; }
  Words remove(const std::string& place) const override { return {"deletefile", place}; }
  std::optional<Code> meaning(int status) const override {
    constexpr int kNoFolder = 3, kNoFile = 4;
    return status == kNoFolder || status == kNoFile ? std::optional(Code::kNotFound) : std::nullopt;
  }
  /// The same as a folder's one file of its name: `list` then looks whether that is there.
  std::string own_name(const std::string& place) const override {
    const size_t slash = place.rfind('/');
    return place.substr((slash == std::string::npos ? place.find(':') : slash) + 1);
  }
};

class CommandBackend final : public WritableBackend {
 public:
  CommandBackend(const Url& url, const Cancel* cancel) : url_(url), cancel_(cancel) {
    while (url_.key.size() > 1 && url_.key.back() == '/') url_.key.pop_back();
    const std::string& program = url_.words[0];
    if (program.substr(program.rfind('/') + 1) == "rclone")
      speech_ = std::make_unique<Rclone>();
    else
      speech_ = std::make_unique<Plain>();
  }

  Result<std::vector<Object>> list(size_t limit) override {
    CKPT_TRY_ASSIGN(std::vector<Object> out, list_of(url_.key, limit, cancel_));
    if (out.empty()) return fail(Code::kNotFound, url_.text, "there is nothing");
    CKPT_TRY_ASSIGN(const bool single, is_object(out));
    if (single) out[0].name.clear();
    std::sort(out.begin(), out.end(), [](const Object& a, const Object& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(out.begin(), out.end(),
                                          [](const Object& a, const Object& b) { return a.name == b.name; });
    if (twice != out.end()) return fail(Code::kCorrupt, url_.text, "lists an object twice: " + twice->name);
    return out;
  }

  Result<void> read(const Object& object, uint64_t offset, MutableByteSpan out) override {
    if (out.empty()) return {};
    const std::string place = place_of(object.name);
    size_t at = 0;
    bool too_much = false;
    auto take = [&](ByteSpan bytes) -> Result<void> {
      too_much = bytes.size() > out.size() - at;
      if (too_much) return fail(Code::kCorrupt, subject(object.name), "came with more bytes than were asked for");
      std::memcpy(out.data() + at, bytes.data(), bytes.size());
      at += bytes.size();
      return {};
    };
    CKPT_TRY(run(speech_->read(place, offset, out.size()), {}, subject(object.name), take, cancel_));
    if (at == out.size()) return {};
    return fail(
        Code::kMismatch, subject(object.name),
        "came with " + std::to_string(at) + " of " + std::to_string(out.size()) + " bytes: it changed meanwhile");
  }

  Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) override {
    return put({bytes, -1}, name, only_if_absent);
  }
  bool takes_parts() const override { return false; }
  Result<void> put_file(const std::string& name, int fd, bool only_if_absent) override {
    return put({{}, fd}, name, only_if_absent);
  }

  Result<void> remove(const std::string& name) override {
    const std::string place = place_of(name);
    auto done = run(speech_->remove(place), {}, subject(name), {}, nullptr);
    if (done || done.error().code == Code::kNotFound) return {};
    const auto there = has_any(place, nullptr);  // not every program tells that apart
    return there && !*there ? Result<void>() : done;
  }

  Result<std::string> begin_upload(const std::string& name) override { return whole_alone(name); }
  Result<std::string> upload_part(const std::string& name, const std::string&, unsigned, ByteSpan) override {
    return whole_alone(name);
  }
  Result<void> complete_upload(const std::string& name, const std::string&, std::span<const std::string>,
                               bool) override {
    return whole_alone(name);
  }
  Result<std::vector<std::string>> list_parts(const std::string& name, const std::string&) override {
    return whole_alone(name);
  }
  Result<void> abort_upload(const std::string&, const std::string&) override { return {}; }

 private:
  using Take = std::function<Result<void>(ByteSpan)>;
  /// What a program has as its stdin.
  struct Input {
    ByteSpan bytes = {};
    int file = -1;
  };

  Result<void> put(const Input& input, const std::string& name, bool only_if_absent) {
    const std::string place = place_of(name);
    if (!only_if_absent) return run(speech_->write(place), input, subject(name), {}, cancel_);
    if (const auto create = speech_->create(place)) return run(*create, input, subject(name), {}, cancel_);
    CKPT_TRY_ASSIGN(const bool there, has_any(place, cancel_));
    if (there) return fail(Code::kMismatch, subject(name), "is there already");
    return run(speech_->write(place), input, subject(name), {}, cancel_);
  }

  std::string place_of(const std::string& name) const { return name.empty() ? url_.key : url_.key + "/" + name; }
  std::string subject(const std::string& name) const { return name.empty() ? url_.text : url_.text + "/" + name; }
  Unexpected whole_alone(const std::string& name) const {
    return fail(Code::kUnsupported, subject(name), "can only be written whole");
  }

  Result<void> run(const Words& words, const Input& input, const std::string& what, const Take& take,
                   const Cancel* cancel, bool to_the_end = false) const {
    ProgramCall call;
    call.to_the_end = to_the_end;
    call.words = url_.words;
    call.words.insert(call.words.end(), words.begin(), words.end());
    call.input = input.bytes, call.input_file = input.file;
    call.output = [&](ByteSpan bytes) { return take ? take(bytes) : Result<void>(); };
    CKPT_TRY_ASSIGN(const ProgramEnd end, run_program(call, cancel));
    if (end.status == 0) return {};
    const std::optional<Code> code = speech_->meaning(end.status);
    std::string message = url_.words[0] + " " + words[0] + " ended with " + std::to_string(end.status);
    if (!end.said.empty()) message += ": " + end.said;
    return fail(code.value_or(Code::kIo), what, message);
  }

  /// One of a single object by the name that the place has itself may be a folder's only one.
  Result<bool> is_object(const std::vector<Object>& listed) const {
    const std::string own = speech_->own_name(url_.key);
    if (listed.size() != 1 || listed[0].name != own) return false;
    if (own.empty()) return true;
    CKPT_TRY_ASSIGN(const bool inner, has_any(url_.key + "/" + own, cancel_));
    return !inner;
  }

  Result<bool> has_any(const std::string& place, const Cancel* cancel) const {
    auto there = list_of(place, 1, cancel);
    if (there) return !there->empty();
    if (there.error().code == Code::kUsage) return true;
    return there.error().code == Code::kNotFound ? Result<bool>(false) : std::move(there).error();
  }

  Result<std::vector<Object>> list_of(const std::string& place, size_t limit, const Cancel* cancel) const {
    std::vector<Object> out;
    std::string line;
    auto take = [&](ByteSpan bytes) -> Result<void> {
      for (const char c : as_text(bytes)) {
        if (c != '\n') {
          if (line.size() == kMaxLine) return fail(Code::kCorrupt, url_.text, "lists a name that is too long");
          line += c;
          continue;
        }
        if (out.size() == limit)
          return fail(Code::kUsage, url_.text, "has more than " + std::to_string(limit) + " objects below it");
        CKPT_TRY_ASSIGN(Object object, parse_line(line));
        out.push_back(std::move(object));
        line.clear();
      }
      return {};
    };
    // What a list lacks would pass for something that is not there.
    CKPT_TRY(run(speech_->list(place), {}, url_.text, take, cancel, true));
    if (!line.empty()) return fail(Code::kCorrupt, url_.text, "lists a line without an end: " + line);
    return out;
  }

  /// "SIZE NAME"
  Result<Object> parse_line(const std::string& line) const {
    Object out;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), out.size);
    const auto digits = static_cast<size_t>(end - line.data());
    if (error != std::errc() || out.size > INT64_MAX || digits == line.size() || line[digits] != ' ')
      return fail(Code::kCorrupt, url_.text, "lists what is no size and name: " + line);
    out.name = line.substr(digits + 1);
    return out;
  }

  Url url_;
  const Cancel* cancel_;
  std::unique_ptr<Speech> speech_;
};

}  // namespace

Result<std::unique_ptr<WritableBackend>> open_command(const Url& url, const Cancel* cancel) {
  return std::unique_ptr<WritableBackend>(std::make_unique<CommandBackend>(url, cancel));
}

}  // namespace ckpt::remote
