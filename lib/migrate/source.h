// The end of a migration at which the processes have run: what a dump gives away, and when they may end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lib/base/cancel.h"
#include "lib/base/digest.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/engine/dump.h"
#include "lib/migrate/connection.h"
#include "lib/migrate/later_pages.h"
#include "lib/migrate/watchdog.h"
#include "lib/migrate/words.h"

namespace ckpt::migrate {

class Source {
 public:
  struct Report {
    int pid = 0, pid_outside = 0;  ///< of the first process, at the other end
    uint64_t bytes_sent = 0;
    uint64_t bytes_frozen = 0;     ///< memory that was copied while they stood still
    uint64_t downtime_us = 0;      ///< from the first stop to the other end's word that they run
    uint64_t bytes_later = 0;      ///< that were sent once they ran
    uint64_t later_us = 0;         ///< how long that took
  };
  /// Connects, and asks whether the processes could live there. `hello` has no id yet. kUsage, kUnsupported, kNoRoom:
  /// the other end says no; kIo, kBusy: it cannot be reached. While ckpt has no other threads.
  static Result<std::unique_ptr<Source>> open(const Remote& remote, Hello hello, uint64_t bytes_per_second,
                                              const Cancel& cancel);
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// For a dump that ends the tree: where its pages, its other files go, and what comes before the end. This object
  /// has to outlive it, and `notes` this.
  void attach(engine::DumpOptions& options, ProgressSink& notes);
  /// The tree has ended.
  void finish();
  const Report& report() const { return report_; }
  const std::string& id() const { return id_; }

 private:
  Source(Watchdog watchdog, std::unique_ptr<Connection> connection, const Hello& hello, const Cancel& cancel)
      : watchdog_(std::move(watchdog)),
        connection_(std::move(connection)),
        id_(hello.id),
        cancel_(cancel),
        lazy_(hello.wishes.lazy_silence_us != 0) {}
  Result<void> greet(Hello hello);
  Result<void> send_pages(const std::string& file, uint64_t offset, ByteSpan data);
  Result<void> send_rest(const std::filesystem::path& folder);
  Result<void> send_file(const std::filesystem::path& path);
  Result<void> await_made();
  Result<bool> hear_wants(const Frame& frame);
  Result<void> send_later();
  Error altered(Verdict verdict, const Error& reason) const;
  Result<void> hand_over(const engine::HandOver& what);
  Result<Verdict> await_verdict(uint64_t frozen_at_us, Error& reason);
  Error give_up(const engine::HandOver& what, Error reason);
  /// What the other end said of it, if a failure to send or to hear is no more than the consequence.
  Error real_reason(Error error);

  Watchdog watchdog_;
  std::unique_ptr<Connection> connection_;
  const std::string id_;
  const Cancel& cancel_;
  struct Sent {
    uint64_t size = 0;
    Xxh3 digest;
  };
  std::mutex mutex_;
  std::map<std::string, Sent> pages_;
  const bool lazy_;
  LaterPages later_;  ///< where it is lazy
  ProgressSink* notes_ = &null_progress();
  Report report_;
};

}  // namespace ckpt::migrate
