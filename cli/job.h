// What watch and guard share: signals one by one, ckpt started anew for each image, and the folder that holds them.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/gpu_flags.h"
#include "lib/base/clock.h"
#include "lib/base/json_writer.h"
#include "lib/base/unique_fd.h"
#include "lib/store/image.h"

namespace ckpt::cli {

/// What happens, one after the other: JSON lines on stdout, or lines of information.
class Events {
 public:
  Events(Console& out, std::string schema) : out_(out), schema_(std::move(schema)) {}
  /// `text`: for people. `members`: name, value, name, value.
  template <class... Members>
  void tell(const char* event, const std::string& text, const Members&... members) {
    if (!out_.json()) return out_.info(text);
    JsonWriter json;
    json.row_of("schema", schema_, "event", event, "time", rfc3339_now(), members...);
    print(std::move(json).finish());
  }

 private:
  void print(const std::string& line);
  Console& out_;
  std::string schema_;
};

/// From its making on the signals it is for are blocked and read here; afterwards they are as they were.
class SignalQueue {
 public:
  /// What is ignored stays so. SIGCHLD is always among them.
  static Result<SignalQueue> take(const std::vector<int>& signals);
  SignalQueue(SignalQueue&&) noexcept = default;
  SignalQueue& operator=(SignalQueue&&) = delete;
  ~SignalQueue();

  int fd() const { return fd_.get(); }
  /// The next one that has come; 0: none. Does not wait.
  int next();
  /// As they were before, for a child between fork and exec.
  const sigset_t& before() const { return before_; }

 private:
  SignalQueue() = default;
  UniqueFd fd_;
  sigset_t before_{};
};

/// A ckpt that does one thing, in a process group of its own, so that a terminal's ^C is not for it. Should this
/// process be killed it is told to end, and lets its target go.
class CkptRun {
 public:
  /// `arguments`: from the verb on; --json is added. What it prints is kept from our own streams.
  static Result<CkptRun> start(const std::vector<std::string>& arguments, const SignalQueue& signals);
  CkptRun(CkptRun&& other) noexcept;
  CkptRun& operator=(CkptRun&&) = delete;
  ~CkptRun();  ///< told to end, and waited for

  pid_t pid() const { return pid_; }
  /// Nothing: it is still at work.
  std::optional<int> finished();
  /// SIGTERM: it lets its target go, and removes what it staged.
  void stop();
  /// It has been killed, and may take long to end: nobody waits for it.
  void abandon() { pid_ = -1; }
  /// Its document, after a run that succeeded; else empty.
  std::string document();
  /// What it failed with, in its own words and with its own code.
  Error error();

 private:
  CkptRun() = default;
  pid_t pid_ = -1;
  int status_ = 0;
  UniqueFd out_, err_;
};

/// The images of one job in one folder, named by numbers; nobody else's while this lives.
class ImageFolder {
 public:
  /// Made where it is missing. kBusy: another watch or guard has it.
  static Result<ImageFolder> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  struct Next {
    std::filesystem::path dir;
    std::filesystem::path prev;  ///< empty: a full image
  };
  /// Where the next image of process `pid` goes, and which it is to lean on: the newest, if that is of such a process
  /// and the chain not longer than `chain` images by that.
  Result<Next> next(int pid, uint64_t chain) const;
  /// The complete ones, from the newest on. `above`: with greater numbers only. Those that are not are noted.
  Result<std::vector<std::filesystem::path>> good_images(uint64_t above, ProgressSink& notes) const;
  /// What killed runs have left.
  void remove_staging() const;

 private:
  std::filesystem::path path_;
  UniqueFd lock_;
};

/// Options of dump and pre-dump that a job needs for each image, and of restore; handed on as they are.
struct JobFlags {
  bool shell_job = false, tcp_established = false, tcp_close = false, ext_unix_sk = false, no_compress = false;
  GpuFlags gpu;
  std::string external_pipes, external_memory, hash, validate_sample;
  std::vector<std::string> for_dump() const;
  std::vector<std::string> for_restore() const;
};
void add_job_flags(VerbOptions& app, JobFlags& flags);

/// Restores the newest of `images` that can be: as a child of this process. Newer ones that are damaged are noted.
struct Restored {
  std::filesystem::path image;
  int pid = 0;
};
Result<Restored> restore_newest(const std::vector<std::filesystem::path>& images, const JobFlags& flags,
                                const SignalQueue& signals, ProgressSink& notes);

}  // namespace ckpt::cli
