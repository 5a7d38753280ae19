// A backend in which something happens before a chosen call: another runs, or everything fails from there on.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lib/base/io.h"
#include "lib/repository/check.h"
#include "lib/repository/collect.h"
#include "lib/repository/pull.h"
#include "lib/repository/push.h"
#include "tests/support/temp_dir.h"

namespace ckpt::repository::test {

namespace fs = std::filesystem;

struct Steps {
  size_t calls = 0;
  size_t act_at = SIZE_MAX;     ///< before this call, counted from 0 ...
  std::function<void()> act;    ///< ... this happens, once
  size_t dead_from = SIZE_MAX;  ///< this call and all after it fail: a machine that went down
  size_t fail_at = SIZE_MAX;    ///< this call alone fails
  std::function<void(const std::string&)> each_read;
  std::mutex mutex;
};

class StepBackend final : public Backend {
 public:
  StepBackend(std::unique_ptr<Backend> inner, Steps& steps) : inner_(std::move(inner)), steps_(steps) {}
  Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) override {
    CKPT_TRY(step());
    return inner_->put(name, bytes, only_if_absent);
  }
  Result<std::vector<StoredObject>> list(const std::string& folder) override {
    CKPT_TRY(step());
    return inner_->list(folder);
  }
  Result<StoredObject> look_up(const std::string& name) override {
    CKPT_TRY(step());
    return inner_->look_up(name);
  }
  Result<void> read(const std::string& name, uint64_t size, uint64_t offset, MutableByteSpan out) override {
    CKPT_TRY(step());
    if (steps_.each_read) steps_.each_read(name);
    return inner_->read(name, size, offset, out);
  }
  Result<void> remove(const std::string& name) override {
    CKPT_TRY(step());
    return inner_->remove(name);
  }
  std::string subject(const std::string& name) const override { return inner_->subject(name); }
  std::optional<std::string> strangers() const override { return inner_->strangers(); }
  size_t good_read() const override { return inner_->good_read(); }

 private:
  Result<void> step() {
    std::function<void()> act;
    bool fails = false;
    {
      std::lock_guard lock(steps_.mutex);
      const size_t number = steps_.calls++;
      if (number >= steps_.dead_from) return fail(Code::kIo, "the store", "is gone");
      if (number == steps_.act_at) act = std::move(steps_.act);
      fails = number == steps_.fail_at;
    }
    if (act) act();
    if (fails) return fail(Code::kIo, "the store", "did not answer");
    return {};
  }
  std::unique_ptr<Backend> inner_;
  Steps& steps_;
};

struct Store {
  ckpt::test::TempDir folder;
  Cancel cancel;
  fs::path key;

  fs::path place() const { return folder.path / "store"; }
  std::unique_ptr<Repository> open() {
    auto out = Repository::open({place().string(), key, true}, cancel);
    if (!out) FAIL(out.error().text());
    return std::move(*out);
  }
  /// Of which the steps are counted from here on.
  std::unique_ptr<Repository> open(Steps& steps) {
    auto inner = open_local(place().string(), true);
    REQUIRE(inner);
    auto out = Repository::open(std::make_unique<StepBackend>(std::move(*inner), steps), {place().string(), key, true},
                                cancel);
    REQUIRE(out);
    steps.calls = 0;
    return std::move(*out);
  }
  Result<PushReport> push(const fs::path& path, const std::string& name, bool force = false) {
    return repository::push(*open(), path, {name, "test", force}, null_progress());
  }
  Result<CollectReport> collect() { return collect_garbage(*open(), {}, null_progress()); }
  CheckReport check(bool repair = false) {
    CheckOptions options;
    options.repair = repair;
    auto out = repository::check(*open(), options, null_progress());
    if (!out) FAIL(out.error().text());
    return *out;
  }
  bool sound() {
    const CheckReport report = check();
    for (const std::string& what : report.damage) MESSAGE(what);
    for (const Loss& loss : report.losses) MESSAGE("lost " << loss.name << " " << loss.path);
    return report.damage.empty() && report.losses.empty();
  }
  /// Pulled into a folder of its own.
  fs::path pull(const std::string& name) {
    const fs::path to = folder.path / "pulled" / std::to_string(++pulls);
    auto done = repository::pull(*open(), name, {to, false, true}, null_progress());
    if (!done) FAIL(done.error().text());
    return done->path;
  }
  void remove(const std::string& name) { REQUIRE(open()->backend().remove(in_folder(kImages, name))); }
  size_t count(const char* in) {
    size_t out = 0;
    for (const auto& entry : fs::directory_iterator(place() / in)) out += entry.is_regular_file();
    return out;
  }
  /// The process of every push that is under way has ended.
  void let_pushes_die() {
    for (const auto& entry : fs::directory_iterator(place() / kPushes)) {
      auto marker = parse_marker(*io::read_file(entry.path(), kMaxDocument), "");
      if (!marker) continue;
      marker->pid_start += 1;
      REQUIRE(io::write_file(entry.path(), to_json(*marker)));
    }
  }
  /// Every push that is under way is one of another host that says nothing any more. By name, what they had said.
  std::map<fs::path, std::string> let_pushes_be_silent() {
    std::map<fs::path, std::string> out;
    for (const auto& entry : fs::directory_iterator(place() / kPushes)) {
      auto text = io::read_file(entry.path(), kMaxDocument);
      auto marker = parse_marker(*text, "");
      if (!marker) continue;
      out.emplace(entry.path(), *text);
      marker->boot_id = "of another host", marker->refreshed = "2020-01-01T00:00:00Z";
      REQUIRE(io::write_file(entry.path(), to_json(*marker)));
    }
    return out;
  }
  int pulls = 0;
};

inline std::string noise(size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string out(size + 8, '\0');
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t number = random();
    std::memcpy(out.data() + at, &number, 8);
  }
  out.resize(size);
  return out;
}

inline void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  REQUIRE(io::write_file(path, text));
}

/// Names, kinds, modes, times, contents.
inline std::map<std::string, std::string> content_of(const fs::path& top) {
  std::map<std::string, std::string> out;
  auto take = [&](const fs::path& path, const std::string& name) {
    struct stat st {};
    REQUIRE(::lstat(path.c_str(), &st) == 0);
    std::string text = std::to_string(st.st_mode) + " " + std::to_string(st.st_mtim.tv_sec) + "." +
                       std::to_string(st.st_mtim.tv_nsec) + " ";
    if (S_ISLNK(st.st_mode)) text += fs::read_symlink(path).string();
    if (S_ISREG(st.st_mode)) text += io::read_file(path, 1 << 30).value_or("unreadable");
    out[name] = text;
  };
  take(top, "");
  for (const auto& entry : fs::recursive_directory_iterator(top))
    take(entry.path(), entry.path().lexically_relative(top).string());
  return out;
}

}  // namespace ckpt::repository::test
