// The agent inside a process that `ckpt run` started, spoken to from outside (agent_protocol.h).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/device/target.h"
#include "plugins/cuda/agent_protocol.h"

namespace ckpt::cuda {

/// May be used by several threads: one request at a time. When it goes away, the agent puts the target back in order:
/// API unlocked, memory attached, nothing set aside.
class AgentTarget final : public device::Target {
 public:
  /// kNotFound: no such process, or no agent in it (it was not started by `ckpt run`, or has not used CUDA yet). kBusy:
  /// another client is talking to it. kPermission: not ours to talk to. kUnsupported: another version of the protocol.
  static Result<std::unique_ptr<AgentTarget>> connect(int pid, uint64_t timeout_us);

  int pid() const override { return pid_; }
  Result<std::string> device_uuid(int device) override;
  Result<std::vector<device::Allocation>> allocations() override;
  Result<std::vector<int>> contexts() override;
  Result<std::vector<std::string>> hazards() override;
  Result<UniqueFd> export_allocation(uint64_t id) override;

  Result<void> lock_api(uint64_t timeout_us) override;
  Result<void> drain(uint64_t timeout_us) override;
  Result<void> unlock_api() override;

  Result<void> begin_cow(uint64_t budget, const std::vector<device::Range>& wanted) override;
  Result<device::SavedTable> saved(uint64_t timeout_us) override;
  Result<UniqueFd> export_saved(uint64_t buffer) override;
  Result<void> end_cow() override;

  Result<void> release(uint64_t id) override;
  Result<void> attach(uint64_t id, int fd) override;
  Result<void> renew(uint64_t id, device::Renew which) override;

  Result<void> begin_fill(const std::vector<uint64_t>& ids) override;
  Result<std::optional<std::vector<uint64_t>>> next_demand(uint64_t timeout_us) override;
  Result<void> filled(uint64_t id) override;

  Result<void> begin_recording(uint64_t limit) override;
  Result<std::vector<device::Launch>> recorded() override;
  Result<void> end_recording() override;
  Result<void> replay(const device::Launch& launch) override;

  /// Everything the agent says of itself and its process.
  Result<agent::HelloReply> hello();
  /// All allocations with what the interface above leaves out: managed, pools, other processes' memory.
  Result<std::vector<agent::AllocationReply>> listing();
  /// API locked. Released memory is the caller's from here on: the agent lets go of the descriptors by which it could
  /// have put it back.
  Result<void> forget();
  /// Every other call fails until `wake`. Where the agent cannot be woken its lease is what counts.
  Result<void> hold(uint64_t lease_us) override;
  void renew_lease() override;
  Result<void> wake() override;

 private:
  struct Reply {
    agent::Message message;
    std::string payload;
    UniqueFd fd;
  };
  AgentTarget(int pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}
  /// `timeout_us` is what the agent itself may take; some more is allowed for the way.
  Result<Reply> ask(agent::Type type, uint64_t a = 0, std::string_view payload = {}, int fd = -1,
                    uint64_t timeout_us = 0);
  Result<void> tell(agent::Type type, uint64_t a = 0, std::string_view payload = {}, int fd = -1,
                    uint64_t timeout_us = 0);
  Result<void> send(const agent::Message& message, std::string_view payload, int fd);
  Result<Reply> receive(uint32_t sequence, uint64_t timeout_us);
  Error refusal(const agent::Message& reply) const;
  Error about_this(Error error) const;
  /// A list that comes in pieces: each is asked for by how many came before.
  template <class T, class Parse>
  Result<std::vector<T>> list(agent::Type type, Parse parse, uint64_t limit);
  std::string subject() const;
  void write_word(uint32_t word) const;

  int pid_;
  std::mutex mutex_;
  UniqueFd socket_;
  uint32_t sequence_ = 0;
  uint64_t wake_address_ = 0;  ///< in the target
  uint32_t renewals_ = 0;
  uint64_t recording_limit_ = 0;
};

}  // namespace ckpt::cuda
