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
#include <cstdlib>
#include <ctime>
#include <map>
#include <sstream>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/run_folder.h"
#include "lib/proc/procfs.h"

namespace ckpt::migrate {

namespace {

constexpr char kLettingGo = 'l', kLettingGoLazily = 'L';
constexpr const char* kPrefix = "receive-";

bool is_open(char state) { return state == kLettingGo || state == kLettingGoLazily; }

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

enum class State { kRuns, kHeld, kGone };

/// Who held it, and what held it, may be on their way out: what is about to be killed is gone.
State state_of(const Claim::Process& process) {
  auto stat = proc::read_stat(process.pid);
  if (!stat || stat->is_zombie() || stat->start_time != process.start_time) return State::kGone;
  auto tids = proc::read_threads(process.pid);
  if (!tids) return State::kGone;
  State out = State::kRuns;
  for (const int tid : *tids) {
    auto status = proc::read_status(process.pid, tid);
    if (!status) continue;  // of a thread that has just ended
    const uint64_t pending = status->pending_private | status->pending_shared;
    if ((pending & (uint64_t{1} << (SIGKILL - 1))) != 0) return State::kGone;
    if (status->tracer != 0) out = State::kHeld;
  }
  return out;
}

void signal(const Claim::Process& process, int number) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  auto stat = proc::read_stat(process.pid);
  if (handle && stat && stat->start_time == process.start_time)
    (void)::syscall(SYS_pidfd_send_signal, handle.get(), number, nullptr, 0);
}

struct Seen {
  proc::Stat stat;
  std::string pid_namespace;
};

/// Everybody, by number.
std::map<int, Seen> look_around(bool at_namespaces) {
  std::map<int, Seen> out;
  DIR* const entries = ::opendir("/proc");
  if (entries == nullptr) return out;
  while (const dirent* entry = ::readdir(entries)) {
    const int pid = std::atoi(entry->d_name);
    auto stat = pid <= 0 ? Result<proc::Stat>(proc::Stat{}) : proc::read_stat(pid);
    if (pid <= 0 || !stat) continue;
    out[pid] = {std::move(*stat), at_namespaces ? proc::read_link(pid, "ns/pid").value_or("") : ""};
  }
  ::closedir(entries);
  return out;
}

/// True: some have been added.
bool add_relatives(std::vector<Claim::Process>& processes, const std::set<std::string>& namespaces) {
  const std::map<int, Seen> all = look_around(!namespaces.empty());
  std::set<int> theirs;  // a number that another one has now does not count
  for (const Claim::Process& process : processes) {
    const auto now = all.find(process.pid);
    if (now != all.end() && now->second.stat.start_time == process.start_time) theirs.insert(process.pid);
  }
  const size_t before = processes.size();
  for (bool more = true; more;) {
    more = false;
    for (const auto& [pid, seen] : all) {
      const proc::Stat& stat = seen.stat;
      const bool is_relative = theirs.count(stat.parent) != 0 || theirs.count(stat.group) != 0 ||
                               theirs.count(stat.session) != 0 || namespaces.count(seen.pid_namespace) != 0;
      if (pid == ::getpid() || stat.is_zombie() || !is_relative || !theirs.insert(pid).second) continue;
      processes.push_back({pid, stat.start_time});
      more = true;
    }
  }
  return processes.size() != before;
}

/// Who let them go was killed meanwhile, and those with it that had not been let go.
Verdict look_at(const Claim::Tree& tree) {
  constexpr uint64_t kPatienceUs = 3'000'000;
  auto here = proc::read_link(::getpid(), "ns/pid");
  if (!here || *here != tree.pid_namespace || tree.processes.empty()) return Verdict::kUnknown;
  for (Stopwatch watch; watch.elapsed_us() < kPatienceUs; ::usleep(10'000)) {
    bool held = false;
    for (const Claim::Process& process : tree.processes) {
      const State state = state_of(process);
      // Part of a tree is none.
      if (state == State::kGone) return end_all(tree.processes, namespaces_of(tree.processes));
      held = held || state == State::kHeld;
    }
    if (!held) return Verdict::kRuns;
  }
  return Verdict::kUnknown;
}

/// "l pid:[4026531836] 4711 123456 4712 123457"
Verdict read_verdict(const std::string& text) {
  if (text.empty()) return Verdict::kUnknown;
  for (const Verdict verdict : {Verdict::kRuns, Verdict::kNot, Verdict::kPartly, Verdict::kLost}) {
    if (text[0] == static_cast<char>(verdict)) return verdict;
  }
  std::istringstream words(text.substr(1));
  Claim::Tree tree;
  Claim::Process process;
  if (!is_open(text[0]) || !(words >> tree.pid_namespace)) return Verdict::kUnknown;
  while (words >> process.pid >> process.start_time) tree.processes.push_back(process);
  const Verdict out = look_at(tree);
  return out == Verdict::kRuns && text[0] == kLettingGoLazily ? Verdict::kPartly : out;
}

Result<std::string> read_claim(int file, const std::string& id) {
  constexpr uint64_t kMost = 16 << 20;
  return io::read_all(file, kMost, name_of(id));
}

}  // namespace

Result<std::vector<Claim::Process>> Claim::find(int root) {
  CKPT_TRY_ASSIGN(const std::vector<proc::TreeEntry> tree, proc::read_tree(root));
  std::vector<Process> out;
  for (const proc::TreeEntry& entry : tree) {
    if (entry.zombie) continue;
    CKPT_TRY_ASSIGN(const proc::Stat stat, proc::read_stat(entry.pid));
    out.push_back({entry.pid, stat.start_time});
  }
  return out;
}

Result<Claim> Claim::take(const std::string& id, const Tree& tree, bool lazily) {
  CKPT_TRY_ASSIGN(const UniqueFd folder, open_common_run_folder());
  std::string content = fmt::format("{} {}", lazily ? kLettingGoLazily : kLettingGo, tree.pid_namespace);
  for (const Process& process : tree.processes) content += fmt::format(" {} {}", process.pid, process.start_time);
  content += '\n';
  CKPT_TRY_ASSIGN(UniqueFd file, make_first(folder.get(), id, content));
  if (!file) return fail(Code::kInterrupted, "", "the source has gone on meanwhile");
  return Claim(std::move(file), lazily);
}

void Claim::runs() {
  decided_ = true;
  const char verdict = static_cast<char>(lazily_ ? Verdict::kPartly : Verdict::kRuns);
  (void)!::pwrite(file_.get(), &verdict, 1, 0);
}

Claim::~Claim() {
  const char verdict = static_cast<char>(Verdict::kNot);
  if (file_ && !decided_) (void)!::pwrite(file_.get(), &verdict, 1, 0);
}

bool says_that_they_run(const std::string& id) {
  auto folder = open_common_run_folder();
  if (!folder) return false;
  const UniqueFd file(::openat(folder->get(), name_of(id).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  char letter = 0;
  if (!file || ::pread(file.get(), &letter, 1, 0) != 1) return false;
  return letter == static_cast<char>(Verdict::kRuns) || letter == static_cast<char>(Verdict::kPartly);
}

Result<Verdict> ask(const std::string& id) {
  constexpr uint64_t kPatienceUs = 5'000'000;
  CKPT_TRY_ASSIGN(const UniqueFd folder, open_common_run_folder());
  auto open = [&] { return UniqueFd(::openat(folder.get(), name_of(id).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC)); };
  UniqueFd file = open();
  if (!file && errno == ENOENT) {
    CKPT_TRY_ASSIGN(const UniqueFd first,
                    make_first(folder.get(), id, std::string(1, static_cast<char>(Verdict::kNot)) + "\n"));
    if (first) return Verdict::kNot;
    file = open();
  }
  if (!file) return sys_error(name_of(id), "cannot be read");
  for (Stopwatch watch; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; ::usleep(10'000)) {
    CKPT_TRY_ASSIGN(const std::string text, read_claim(file.get(), id));
    if (!text.empty() && !is_open(text[0])) return read_verdict(text);
    if (::lseek(file.get(), 0, SEEK_SET) != 0) return sys_error(name_of(id), "cannot be read");
    if (watch.elapsed_us() > kPatienceUs) return Verdict::kUnknown;
  }
  CKPT_TRY_ASSIGN(const std::string text, read_claim(file.get(), id));
  return read_verdict(text);
}

Result<void> conclude(const std::string& id, Verdict verdict) {
  CKPT_TRY_ASSIGN(const UniqueFd folder, open_common_run_folder());
  const UniqueFd file(::openat(folder.get(), name_of(id).c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return sys_error(name_of(id), "cannot be written");
  const auto letter = static_cast<std::byte>(verdict);
  return io::pwrite_all(file.get(), {&letter, 1}, 0, name_of(id));
}

std::set<std::string> namespaces_of(const std::vector<Claim::Process>& processes) {
  std::set<std::string> out;
  const auto own = proc::read_link(::getpid(), "ns/pid");
  if (!own) return out;
  for (const Claim::Process& process : processes) {
    auto name = proc::read_link(process.pid, "ns/pid");
    auto stat = proc::read_stat(process.pid);  // read after it: it was of this process
    if (name && stat && stat->start_time == process.start_time) out.insert(*name);
  }
  out.erase(*own);
  return out;
}

Verdict end_all(std::vector<Claim::Process> processes, const std::set<std::string>& namespaces) {
  constexpr uint64_t kPatienceUs = 3'000'000, kStoppedUs = 1'000'000;
  // A fork that has begun shows its child a moment later.
  constexpr int kQuietLooks = 3;
  Stopwatch watch;
  for (int quiet = 0; quiet < kQuietLooks && watch.elapsed_us() < kStoppedUs; ::usleep(5'000)) {
    quiet = add_relatives(processes, namespaces) ? 0 : quiet + 1;
    for (const Claim::Process& process : processes) signal(process, SIGSTOP);
  }
  for (; watch.elapsed_us() < kPatienceUs; ::usleep(10'000)) {
    bool any = add_relatives(processes, namespaces);
    for (const Claim::Process& process : processes) {
      if (state_of(process) == State::kGone) continue;
      any = true;
      signal(process, SIGKILL);
    }
    if (!any) return Verdict::kNot;
  }
  return Verdict::kUnknown;
}

void forget(const std::string& id) {
  auto folder = open_common_run_folder();
  if (folder) ::unlinkat(folder->get(), name_of(id).c_str(), 0);
}

void forget_old() {
  constexpr std::time_t kDays = 7 * 86400;
  auto folder = open_common_run_folder();
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
