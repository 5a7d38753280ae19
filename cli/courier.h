// What connects the ckpts of a job: a process of its own beside each, which MPI has for itself. ckpt can so stop
// waiting, and nothing of MPI's is in a process that forks trees or borrows threads.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>

#include "lib/base/transport.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/together.h"

namespace ckpt::cli {

/// Goes with this process: it ends with it, in order once `end` was called, else so that whoever launched the job
/// notices. Processes that are forked from this one may use it in its place, one at a time.
class Courier final : public engine::Circle {
 public:
  using Connect = std::function<Result<std::unique_ptr<Transport>>()>;
  /// Forks, and connects in the child. Needs a process without other threads.
  static Result<std::unique_ptr<Courier>> start(const Connect& connect, const Cancel& cancel);
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;
  ~Courier() override;

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return size_; }
  Result<std::vector<std::string>> gather(const std::string& mine, const engine::Patience& patience) override;
  bool is_overdue() const override;
  Result<std::vector<std::string>> overdue(const engine::Patience& patience) override;
  void end() override;
  bool has_ended() const override;
  /// Ends it, in order if all has been agreed on: with the others', so that no launcher takes it for a failure. Waits
  /// for that in the process that started it, for as long as the others take, unless a request to end comes.
  void finish();

 private:
  struct Shared;
  Courier() = default;
  Result<std::string> receive(const engine::Patience& patience);

  UniqueFd channel_;
  pid_t pid_ = -1, owner_ = -1;
  uint32_t rank_ = 0, size_ = 0;
  const Cancel* cancel_ = nullptr;
  Shared* shared_ = nullptr;  ///< by the processes that use it
};

}  // namespace ckpt::cli
