#include "lib/state/keyrings/capture.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace ckpt::capture {

namespace {

using proc::CallList;

constexpr size_t kMostKeys = 16;  ///< that are told apart
using Serials = std::array<int32_t, kMostKeys>;

uint64_t ring(int special) { return static_cast<uint64_t>(static_cast<int64_t>(special)); }

/// The number of bytes that its list takes; negative: there is no such keyring, or no keyrings at all.
size_t ask_size(CallList& calls, const char* what, int special) {
  return calls.add(what, SYS_keyctl, {KEYCTL_READ, ring(special), 0, 0});
}
size_t ask_number(CallList& calls, const char* what, int special) {
  return calls.add(what, SYS_keyctl, {KEYCTL_GET_KEYRING_ID, ring(special), 0});
}

bool stays_its_user(const proc::Status& status) {
  constexpr uint64_t kSetUid = uint64_t{1} << CAP_SETUID;
  const auto& uid = status.uid;
  return uid[0] == uid[1] && uid[0] == uid[2] && (status.cap_permitted & kSetUid) == 0;
}

int64_t own_session_ring() {
  static const int64_t number = ::syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0);
  return number;
}

}  // namespace

KeyQuestions::KeyQuestions(CallList& calls)
    : thread_(ask_size(calls, "read its keyring", KEY_SPEC_THREAD_KEYRING)),
      process_(ask_size(calls, "read its process's keyring", KEY_SPEC_PROCESS_KEYRING)) {}

Result<void> KeyQuestions::refuse_keys(const CallList& calls, int tid) const {
  for (const auto& [call, whose] :
       {std::pair(thread_, "its own keyring"), std::pair(process_, "its process's keyring")}) {
    if (calls.result(call) <= 0) continue;
    return fail(Code::kUnsupported, fmt::format("thread {}", tid),
                fmt::format("has keys in {} (keyctl), which is not supported", whose));
  }
  return {};
}

SessionKeyQuestions::SessionKeyQuestions(CallList& calls, const proc::Status& status)
    : asked_(stays_its_user(status)) {
  if (!asked_) return;
  ring_ = ask_number(calls, "ask for its session's keyring", KEY_SPEC_SESSION_KEYRING);
  keys_ = calls.add("read its session's keyring", SYS_keyctl,
                    {KEYCTL_READ, ring(KEY_SPEC_SESSION_KEYRING), 0, sizeof(Serials)}, sizeof(Serials), proc::kThird);
  user_ = ask_number(calls, "ask for its user's keyring", KEY_SPEC_USER_KEYRING);
  user_session_ = ask_number(calls, "ask for its user's session keyring", KEY_SPEC_USER_SESSION_KEYRING);
}

void SessionKeyQuestions::take(const CallList& calls, std::vector<std::string>& notes) const {
  if (!asked_) return;
  const int64_t ring = calls.result(ring_), size = calls.result(keys_);
  if (ring <= 0 || size <= 0 || ring == own_session_ring() || ring == calls.result(user_session_)) return;
  const size_t count = static_cast<size_t>(size) / sizeof(int32_t), told = std::min(count, kMostKeys);
  const auto serials = calls.written<Serials>(keys_);
  const auto its_own = static_cast<size_t>(
      std::count_if(serials.begin(), serials.begin() + static_cast<ptrdiff_t>(told), [&](int32_t serial) {
        return serial != calls.result(user_) && serial != calls.result(user_session_);
      }));
  const size_t lost = its_own + count - told;
  if (lost == 0) return;
  notes.push_back(fmt::format("its session's keyring has {} of its own, which {} not go along (keyctl show)",
                              lost == 1 ? "a key" : fmt::format("{} keys", lost), lost == 1 ? "does" : "do"));
}

}  // namespace ckpt::capture
