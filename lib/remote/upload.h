// Files that become objects together: they are uploaded in parts while they are written, and appear by `commit`.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/output.h"
#include "lib/base/worker_pool.h"
#include "lib/remote/backend.h"
#include "lib/remote/mounted.h"
#include "lib/remote/part_sizes.h"
#include "lib/remote/spool.h"

namespace ckpt::remote {

/// Nothing is seen below the URL before `commit`, which completes the uploads, the file that makes the whole complete
/// last. The destructor without it aborts them. A ckpt that is killed leaves uploads that nobody completes: the rule of
/// the bucket for incomplete multipart uploads removes them.
///
/// In memory are the parts that are being filled, at most kInFlight bytes that are on their way, and files smaller than
/// a part up to kHeld bytes, which wait for `commit`. Who writes faster than the network takes it waits, but for
/// `never_wait`.
class Upload final : public io::StagedOutput {
 public:
  static constexpr unsigned kThreads = 8;
  static constexpr uint64_t kInFlight = 64 << 20;
  static constexpr uint64_t kHeld = 16 << 20;

  struct Options {
    bool one_file = false;  ///< the URL names the one file that there will be, not a folder
    bool force = false;     ///< `commit` replaces what is there: all objects below the URL
  };

  /// kUsage: something is there, and no `force`. kUnsupported: the URL is only read. `cancel` must outlive it.
  static Result<std::unique_ptr<Upload>> open(const std::string& url, const Options& options, const Cancel* cancel);
  ~Upload() override;
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  Result<std::unique_ptr<io::OutputFile>> create(const std::string& name, std::optional<uint64_t> size) override;
  Result<void> commit(const std::string& last) override;
  uint64_t bytes() const override;
  Result<std::filesystem::path> read_back() override;
  Error withdraw(Error because) override;

  /// While it is set nobody who writes waits for the network: what has no room in memory goes through a file below
  /// TMPDIR. Thread-safe.
  void never_wait(bool set);

 private:
  using Buffer = std::vector<std::byte>;
  struct Staged;
  class File;
  class Ticket;

  Upload(std::string url, const Options& options, const Cancel* cancel);
  Buffer take_buffer(uint64_t size);
  void give_back(Buffer buffer);
  Result<void> send(Staged& staged, unsigned part, Buffer bytes);
  Result<void> send_later(Staged& staged, unsigned part, Buffer bytes);
  Result<void> send_part(Staged& staged, unsigned part, ByteSpan bytes);
  Result<void> hold(Staged& staged, Buffer bytes);
  Result<void> replace_what_is_there();
  Result<void> publish(Staged& staged);
  Result<void> publish_all(const std::string& last);
  Result<void> roll_back();
  Error roll_back_because(Error because);

  const std::string url_;
  const Options options_;
  const Cancel* cancel_;
  std::unique_ptr<WritableBackend> backend_;
  std::vector<Object> there_;  ///< what `commit` replaces
  mutable std::mutex mutex_;   ///< of all that follows
  std::condition_variable landed_;
  std::deque<Staged> staged_;
  std::vector<Buffer> idle_;
  uint64_t in_flight_ = 0, held_ = 0;
  bool never_wait_ = false;
  bool committed_ = false;
  std::unique_ptr<Mounted> mounted_;
  Spool spool_;
  std::unique_ptr<WorkerPool> pool_;  ///< last: its threads use the rest
};

}  // namespace ckpt::remote
