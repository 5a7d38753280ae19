#include "lib/migrate/claim.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <sstream>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/run_folder.h"
#include "lib/proc/procfs.h"

namespace ckpt::migrate {

namespace {

constexpr char kLettingGo = 'l';
constexpr const char* kPrefix = "receive-";

std::string name_of(const std::string& id) { return kPrefix + id; }

/// The file with all of its content, locked, or nothing where there is one already.
Result<UniqueFd> make_first(int folder, const std::string& id, const std::string& content) {
  const std::string name = name_of(id), fresh = fmt::format(".{}.{}", name, ::getpid());
  UniqueFd file(::openat(folder, fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return sys_error(fresh, "cannot be made");
  Result<void> written = io::pwrite_all(file.get(), as_bytes(content), 0, fresh);
  if (written && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) written = sys_error(fresh, "cannot be locked");
  const bool named = written && ::syscall(SYS_renameat2, folder, fresh.c_str(), folder, name.c_str(),
                                          RENAME_NOREPLACE) == 0;
  const int error = errno;
  if (!named) ::unlinkat(folder, fresh.c_str(), 0);
  CKPT_TRY(std::move(written));
  if (!named && error != EEXIST) return sys_error(error, name, "cannot be made");
  return named ? std::move(file) : UniqueFd();
}

bool is_killed(int pid) {
  auto status = proc::read_status(pid, pid);
  return !status || ((status->pending_private | status->pending_shared) & (uint64_t{1} << (SIGKILL - 1))) != 0;
}

/// Who let them go was killed meanwhile, and they with it unless they had been let go.
Verdict look_at(const Claim::Process& process) {
  constexpr uint64_t kPatienceUs = 3'000'000;
  auto here = proc::read_link(::getpid(), "ns/pid");
  if (!here || *here != process.pid_namespace) return Verdict::kUnknown;
  for (Stopwatch watch; watch.elapsed_us() < kPatienceUs; ::usleep(10'000)) {
    auto stat = proc::read_stat(process.pid);
    if (!stat || stat->is_zombie() || stat->start_time != process.start_time) return Verdict::kNot;
    auto status = proc::read_status(process.pid, process.pid);
    if (status && status->tracer == 0 && !is_killed(process.pid)) return Verdict::kRuns;
  }
  return Verdict::kUnknown;
}

/// "l 4711 123456 pid:[4026531836]"
Verdict read_verdict(const std::string& text) {
  if (text.empty()) return Verdict::kUnknown;
  if (text[0] == static_cast<char>(Verdict::kRuns)) return Verdict::kRuns;
  if (text[0] == static_cast<char>(Verdict::kNot)) return Verdict::kNot;
  std::istringstream words(text.substr(1));
  Claim::Process process;
  if (text[0] != kLettingGo || !(words >> process.pid >> process.start_time >> process.pid_namespace))
    return Verdict::kUnknown;
  return look_at(process);
}

}  // namespace

Result<Claim> Claim::take(const std::string& id, const Process& process) {
  CKPT_TRY_ASSIGN(const UniqueFd folder, open_run_folder());
  const std::string content =
      fmt::format("{} {} {} {}\n", kLettingGo, process.pid, process.start_time, process.pid_namespace);
  CKPT_TRY_ASSIGN(UniqueFd file, make_first(folder.get(), id, content));
  if (!file) return fail(Code::kInterrupted, "", "the source has gone on meanwhile");
  return Claim(std::move(file));
}

void Claim::runs() {
  decided_ = true;
  const char verdict = static_cast<char>(Verdict::kRuns);
  (void)!::pwrite(file_.get(), &verdict, 1, 0);
}

Claim::~Claim() {
  const char verdict = static_cast<char>(Verdict::kNot);
  if (file_ && !decided_) (void)!::pwrite(file_.get(), &verdict, 1, 0);
}

Result<Verdict> ask(const std::string& id) {
  constexpr uint64_t kPatienceUs = 5'000'000;
  CKPT_TRY_ASSIGN(const UniqueFd folder, open_run_folder());
  CKPT_TRY_ASSIGN(const UniqueFd first,
                  make_first(folder.get(), id, std::string(1, static_cast<char>(Verdict::kNot)) + "\n"));
  if (first) return Verdict::kNot;
  UniqueFd file(::openat(folder.get(), name_of(id).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return sys_error(name_of(id), "cannot be read");
  for (Stopwatch watch; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; ::usleep(10'000)) {
    CKPT_TRY_ASSIGN(const std::string text, io::read_all(file.get(), 4096, name_of(id)));
    if (!text.empty() && text[0] != kLettingGo) return read_verdict(text);
    if (::lseek(file.get(), 0, SEEK_SET) != 0) return sys_error(name_of(id), "cannot be read");
    if (watch.elapsed_us() > kPatienceUs) return Verdict::kUnknown;
  }
  CKPT_TRY_ASSIGN(const std::string text, io::read_all(file.get(), 4096, name_of(id)));
  return read_verdict(text);
}

void forget(const std::string& id) {
  auto folder = open_run_folder();
  if (folder) ::unlinkat(folder->get(), name_of(id).c_str(), 0);
}

void forget_old() {
  constexpr std::time_t kDays = 7 * 86400;
  auto folder = open_run_folder();
  if (!folder) return;
  const int fd = ::openat(folder->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : ::fdopendir(fd);
  if (entries == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries)) names.emplace_back(entry->d_name);
  ::closedir(entries);
  for (const std::string& name : names) {
    struct stat st{};
    if (name.find(kPrefix) <= 1 && ::fstatat(folder->get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        std::time(nullptr) - st.st_mtime > kDays)
      ::unlinkat(folder->get(), name.c_str(), 0);
  }
}

}  // namespace ckpt::migrate
