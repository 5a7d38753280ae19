#include "lib/state/labels/change.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/proc/waiting_child.h"
#include "lib/state/labels/capture.h"

namespace ckpt::restore {

namespace {

using Labels = std::vector<store::SecurityLabel>;

constexpr const char *kCurrent = "current", *kAppArmorsOwn = "apparmor/current";
constexpr std::string_view kAppArmor = "apparmor:", kSelinux = "selinux:";

}  // namespace

std::string label_in(const Labels& labels, const std::string& file) {
  const auto found = std::find_if(labels.begin(), labels.end(), [&](const auto& label) { return label.name == file; });
  return found == labels.end() ? "" : found->value;
}

bool is_of_thread(const std::string& file) { return file == kCurrent || file == kAppArmorsOwn; }

bool has_mode(const std::string& label) { return label.ends_with(')') && label.rfind(" (") != std::string::npos; }

std::string without_mode(const std::string& label) {
  return has_mode(label) ? label.substr(0, label.rfind(" (")) : label;
}

namespace {

LabelChange apparmor_change(const char* file, const std::string& label) {
  return {file, "changeprofile " + (label.empty() ? "unconfined" : without_mode(label)), label, false};
}

std::string attr_path(const LabelChange& change) { return "/proc/thread-self/attr/" + change.file; }

Error not_changed(const std::string& subject, const LabelChange& change, const std::string& why) {
  return Error(Code::kPermission, subject,
               fmt::format("does not get the security label {}: {}", change.label, why))
      .with_hint("give the label up: ckpt restore --drop-labels");
}

/// 0, or the number of the error. Plain system calls only.
int write_own(const char* path, const std::string& text) {
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const long written = ::syscall(SYS_write, fd, text.data(), text.size());
  const int error = written == static_cast<long>(text.size()) ? 0 : written < 0 ? errno : EIO;
  ::syscall(SYS_close, fd);
  return error;
}

Result<void> write_in(int tid, int pid, const LabelChange& change, Child& child) {
  const std::string subject = fmt::format("thread {}", tid);
  SyscallBatch open;
  const uint64_t path = child.area().put_string(attr_path(change));
  open.try_add("open its label", SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
  CKPT_TRY(child.run(tid, open));
  const int64_t fd = open.calls()[0].result;
  if (fd < 0) return not_changed(subject, change, open.failure(0).text());
  SyscallBatch write;
  write.try_add("change its label", SYS_write, fd, child.area().put_string(change.text), change.text.size());
  write.try_add("close its label", SYS_close, fd);
  CKPT_TRY(child.run(tid, write));
  if (write.calls()[0].result < 0) return not_changed(subject, change, write.failure(0).text());
  CKPT_TRY_ASSIGN(const Labels now, capture::read_labels(pid, tid));
  return gives(change, now) ? Result<void>()
                            : not_changed(subject, change, fmt::format("it is \"{}\"", label_in(now, change.file)));
}

}  // namespace

std::optional<LabelChange> change_between(const Labels& own, const Labels& was) {
  std::vector<std::string> differ;
  for (const Labels* labels : {&was, &own}) {
    for (const store::SecurityLabel& label : *labels) {
      if (label_in(was, label.name) != label_in(own, label.name)) differ.push_back(label.name);
    }
  }
  auto differs = [&](const char* file) { return std::find(differ.begin(), differ.end(), file) != differ.end(); };
  if (differ.empty() || !std::all_of(differ.begin(), differ.end(), is_of_thread)) return std::nullopt;
  const bool own_file = differs(kAppArmorsOwn);
  const char* file = own_file ? kAppArmorsOwn : kCurrent;
  const std::string label = label_in(was, file), ours = label_in(own, file);
  // Two modules, each with a change of its own.
  if (own_file && differs(kCurrent) && label_in(was, kCurrent) != label) return std::nullopt;
  if (own_file || has_mode(label) || (label.empty() && has_mode(ours)))
    return apparmor_change(file, label);
  if (std::count(label.begin(), label.end(), ':') < 2) return std::nullopt;
  return LabelChange{file, label, label, true};
}

std::optional<LabelChange> change_to(const std::string& profile, const Labels& was) {
  const bool had_own = !label_in(was, kAppArmorsOwn).empty();
  if (!had_own && label_in(was, kCurrent).empty()) return std::nullopt;
  if (profile.starts_with(kAppArmor)) {
    return apparmor_change(had_own ? kAppArmorsOwn : kCurrent,
                           capture::parse_label(std::string_view(profile).substr(kAppArmor.size())));
  }
  const std::string context = profile.substr(kSelinux.size());
  return LabelChange{kCurrent, context, context, true};
}

Result<void> check_profile(const std::string& profile) {
  for (const std::string_view type : {kAppArmor, kSelinux}) {
    if (profile.starts_with(type) && profile.size() > type.size() &&
        profile.find_first_of(std::string_view("\0\n", 2)) == std::string::npos)
      return {};
  }
  return fail(Code::kUsage, fmt::format("the security label '{}'", profile),
              "is not of the form apparmor:NAME or selinux:CONTEXT");
}

bool gives(const LabelChange& change, const Labels& labels) {
  const std::string label = label_in(labels, change.file);
  return label == change.label || (!change.label.empty() && without_mode(label) == change.label);
}

Result<void> try_change(const LabelChange& change) {
  void* memory = ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error("", "cannot share memory with a process");
  const Mapping mapping(memory, sizeof(int));
  int& error = *static_cast<int*>(memory);
  const std::string path = attr_path(change);
  auto write = [&] { return (error = write_own(path.c_str(), change.text)) == 0; };
  auto child = proc::WaitingChild::start(write, [] {});
  if (error != 0) return Error(Code::kPermission, "", std::strerror(error));
  if (!child && child.error().code == Code::kUnsupported) return {};  // the processes themselves will tell
  if (!child) return std::move(child).error();
  auto now = capture::read_labels(child->pid(), child->pid());  // of one that has ended, too, until it is waited for
  child->join();
  if (!now) return std::move(now).error();
  if (gives(change, *now)) return {};
  return Error(Code::kPermission, "", fmt::format("it became \"{}\"", label_in(*now, change.file)));
}

Result<void> change_labels(const store::ProcessImage& image, const LabelChanges& changes, bool before_threads,
                           Child& child) {
  for (const store::Thread& thread : image.threads) {
    const auto change = changes.find(thread.tid);
    if (change == changes.end() || change->second.before_threads != before_threads) continue;
    CKPT_TRY(write_in(thread.tid, image.pid, change->second, child));
    if (before_threads) return {};
  }
  return {};
}

}  // namespace ckpt::restore
