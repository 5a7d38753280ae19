// Who is pushing.
#include <signal.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/repository/repository.h"

namespace ckpt::repository {

namespace {

constexpr uint64_t kRefreshUs = uint64_t{300} * 1'000'000;
constexpr uint64_t kLongestGapUs = uint64_t{3600} * 1'000'000;  ///< far below any grace that `is_dead` is given

/// Goes on while the machine sleeps.
uint64_t boottime_us() {
  timespec ts{};
  ::clock_gettime(CLOCK_BOOTTIME, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000 + static_cast<uint64_t>(ts.tv_nsec) / 1000;
}

uint64_t now_s() { return static_cast<uint64_t>(std::time(nullptr)); }

std::string boot_id() {
  auto text = io::read_file("/proc/sys/kernel/random/boot_id", 4096);
  return text ? text->substr(0, text->find('\n')) : "";
}

uint64_t pid_namespace() {
  struct stat st {};
  return ::stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/// Clock ticks since boot at which the process started; 0: there is none, or it has ended and nobody asked how.
uint64_t start_of(uint64_t pid) {
  auto text = io::read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
  const size_t name = text ? text->rfind(')') : std::string::npos;
  if (name == std::string::npos || name + 2 >= text->size() || (*text)[name + 2] == 'Z') return 0;
  size_t at = name + 1;
  for (int field = 2; field < 21 && at != std::string::npos; ++field) at = text->find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text->c_str() + at, nullptr, 10);
}

/// It is there, and /proc does not show it to this user.
bool is_hidden(uint64_t pid) {
  if (io::read_file("/proc/" + std::to_string(pid) + "/stat", 4096)) return false;
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

/// Seconds since 1970 of what rfc3339_now wrote; 0: it is none.
std::time_t parse_time(const std::string& text) {
  tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  return end == nullptr ? 0 : ::timegm(&parts);
}

}  // namespace

Result<std::unique_ptr<PushMarker>> PushMarker::put(Backend& backend, const std::string& kind) {
  std::unique_ptr<PushMarker> out(new PushMarker(backend));
  CKPT_TRY_ASSIGN(out->id_, random_id());
  struct utsname name {};
  ::uname(&name);
  Marker& marker = out->marker_;
  marker.kind = kind;
  marker.host = name.nodename, marker.boot_id = boot_id(), marker.pid_namespace = pid_namespace();
  marker.pid = static_cast<uint64_t>(::getpid()), marker.pid_start = start_of(marker.pid);
  marker.since = marker.refreshed = rfc3339_now();
  out->refreshed_us_ = boottime_us(), out->refreshed_at_s_ = now_s();
  out->there_ = true;  // also where that fails: it may have come to be
  CKPT_TRY(backend.put(in_folder(kPushes, out->id_), as_bytes(to_json(marker)), true));
  return out;
}

PushMarker::~PushMarker() {
  // While the draft cannot be taken away the marker stays with it, until its process is gone.
  if (drafted_ && !backend_.remove(in_folder(kPushes, id_ + kDraft))) return;
  if (there_) (void)backend_.remove(in_folder(kPushes, id_));
}

Result<void> PushMarker::honour(const std::vector<Repository::Named>& condemned) {
  if (condemned.empty()) return {};
  for (const Repository::Named& one : condemned) marker_.honoured.push_back(one.name);
  return put_again();
}

/// Whoever was away for so long may have been taken for dead. By both clocks: a machine that was paused as a whole
/// learns of it from the second.
Result<void> PushMarker::check_gap() const {
  const uint64_t now_us = boottime_us(), at_s = now_s();
  const bool long_ago = now_us - refreshed_us_ > kLongestGapUs ||
                        (at_s > refreshed_at_s_ && (at_s - refreshed_at_s_) * 1'000'000 > kLongestGapUs);
  if (!long_ago) return {};
  return fail(Code::kBusy, backend_.subject(),
              "this " + marker_.kind + " stood still for so long that it counts as dead: start it again");
}

Result<void> PushMarker::put_again() {
  CKPT_TRY(check_gap());
  const uint64_t now_us = boottime_us(), at_s = now_s();
  marker_.refreshed = rfc3339_now();
  CKPT_TRY(backend_.put(in_folder(kPushes, id_), as_bytes(to_json(marker_)), false));
  CKPT_TRY(check_gap());
  refreshed_us_ = now_us, refreshed_at_s_ = at_s;
  return {};
}

Result<void> PushMarker::refresh() {
  CKPT_TRY(check_gap());
  return boottime_us() - refreshed_us_ < kRefreshUs ? Result<void>() : put_again();
}

Result<void> PushMarker::put_draft(const std::string& ref) {
  drafted_ = true;
  return backend_.put(in_folder(kPushes, id_ + kDraft), as_bytes(ref), true);
}

Result<void> PushMarker::check_alive() {
  CKPT_TRY_ASSIGN(const std::vector<StoredObject> pushes, backend_.list(kPushes));
  bool there = false, taken = false;
  for (const StoredObject& push : pushes)
    there = there || push.name == id_, taken = taken || push.name == id_ + kTakenForDead;
  if (there && !taken) return {};
  return fail(Code::kBusy, backend_.subject(), "ckpt gc took this " + marker_.kind + " for dead: start it again");
}

Liveness liveness(const Marker& marker, uint64_t grace_s) {
  if (marker.pid_start != 0 && !marker.boot_id.empty() && marker.boot_id == boot_id() &&
      marker.pid_namespace == pid_namespace()) {
    const bool gone = start_of(marker.pid) != marker.pid_start && !is_hidden(marker.pid);
    return gone ? Liveness::kGone : Liveness::kAlive;
  }
  return is_older(marker.refreshed, grace_s) ? Liveness::kSilent : Liveness::kAlive;
}

bool is_older(const std::string& time, uint64_t seconds) {
  return parse_time(time) + static_cast<std::time_t>(seconds) < std::time(nullptr);
}

}  // namespace ckpt::repository
