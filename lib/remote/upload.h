// Files that become objects together: they are uploaded in parts while they are written, and appear by `commit`.
#pragma once

#include <atomic>
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
#include "lib/remote/upload_journal.h"

namespace ckpt::remote {

/// Nothing is seen below the URL before `commit`, which completes the uploads, the file that makes the whole complete
/// last. The destructor without it aborts them. A ckpt that is killed leaves uploads that nobody completes: the rule of
/// the bucket for incomplete multipart uploads removes them; or, where there is a plan, goes on with them later.
///
/// Where no parts are taken (cmd:) a file lies below TMPDIR until it is finished, and is put then, unless it makes the
/// whole readable or replaces another: those wait for `commit`.
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
    /// Of what is made, where a later attempt shall go on with what this one has finished: files of many parts, in a
    /// folder. An object among them says which; a failure before `commit` takes nothing back that is finished.
    std::string plan = {};
  };

  /// kUsage: something is there, and no `force`. kBusy: what is there is of another plan. kUnsupported: the URL is only
  /// read, or takes no parts, and there is a plan. `cancel` must outlive it.
  static Result<std::unique_ptr<Upload>> open(const std::string& url, const Options& options, const Cancel* cancel);
  ~Upload() override;
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  Result<std::unique_ptr<io::OutputFile>> create(const std::string& name, std::optional<uint64_t> size) override;
  Result<bool> take_up(const std::string& name, uint64_t size) override;
  Result<void> commit(const std::string& last) override;
  uint64_t bytes() const override;
  Result<std::filesystem::path> read_back() override;
  Error withdraw(Error because) override;

  /// While it is set nobody who writes waits for the network: what has no room in memory goes through a file below
  /// TMPDIR, as long as that has room. Thread-safe.
  void never_wait(bool set);
  /// Whether somebody waited all the same, since TMPDIR had no room.
  bool waited() const;

 private:
  using Buffer = std::vector<std::byte>;
  struct Staged;
  class File;
  class WholeFile;
  class Ticket;

  Upload(std::string url, Options options, const Cancel* cancel);
  Result<void> look();
  Result<void> go_on_from(const Object& journal);
  Buffer take_buffer(uint64_t size);
  void give_back(Buffer buffer);
  Result<void> send(Staged& staged, unsigned part, Buffer bytes);
  bool has_room(uint64_t bytes) const;
  Result<bool> send_later(Staged& staged, unsigned part, ByteSpan bytes);
  Result<void> send_part(Staged& staged, unsigned part, ByteSpan bytes);
  Result<void> hold(Staged& staged, Buffer bytes);
  Result<void> finished(Staged& staged, uint64_t size);
  Result<void> whole(Staged& staged, uint64_t size);
  bool may_go_early(const Staged& staged) const;
  Result<void> put_early(Staged& staged);
  Result<void> write_down();
  bool keeps(const Staged& staged) const;
  Result<void> replace_what_is_there();
  Result<void> remove_what_was_there(const std::string& name);
  Result<void> publish(Staged& staged);
  void drop_journal();
  Result<void> publish_all(const std::string& last);
  Result<void> roll_back();
  Error roll_back_because(Error because);

  const std::string url_;
  Options options_;
  const Cancel* cancel_;
  std::unique_ptr<WritableBackend> backend_;
  std::vector<Object> there_;  ///< what `commit` replaces
  std::atomic<size_t> removed_{0};  ///< of them, or perhaps
  std::vector<UploadJournal::File> earlier_;  ///< what another attempt has finished
  std::vector<UploadJournal::File> replaced_; ///< the same of another plan
  std::vector<Object> completed_;             ///< of these, what appeared before it ended
  std::mutex journal_mutex_;                  ///< one at a time writes down what is finished
  bool keeps_ = false;                        ///< what is finished outlives a failure
  mutable std::mutex mutex_;   ///< of all that follows
  std::condition_variable landed_;
  std::deque<Staged> staged_;
  std::vector<Buffer> idle_;
  uint64_t in_flight_ = 0, held_ = 0;
  bool never_wait_ = false, waited_ = false;
  bool committed_ = false;
  std::unique_ptr<Mounted> mounted_;
  Spool spool_;
  std::unique_ptr<WorkerPool> pool_;  ///< last: its threads use the rest
};

}  // namespace ckpt::remote
