#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <set>
#include <sstream>

#include "lib/base/io.h"
#include "lib/base/run_folder.h"
#include "lib/proc/procfs.h"
#include "lib/state/files/tracker.h"
#include "lib/state/files/tracker_channel.h"

namespace ckpt::state {

namespace {

/// `is_theirs`: the tracker of one of the processes, or of one above them. Another one may have ended, and knew none.
/// kBusy: another one says nothing.
Result<std::string> ask_tracker(int folder, const std::string& name, const std::string& processes, bool is_theirs) {
  constexpr uint64_t kMost = 256 << 20;
  const UniqueFd socket = connect_to_tracker(folder, name, 0);
  const int error = -socket.get();
  if (!socket && (error == ENOENT || (error == ECONNREFUSED && !is_theirs))) return std::string();
  if (!socket) return sys_error(error, "ckpt-track", "cannot be asked which files were written");
  const timeval patience{is_theirs ? 10 : 1, 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string text;
  if (send_all(socket.get(), processes) && ::shutdown(socket.get(), SHUT_WR) == 0) {
    auto all = io::read_all(socket.get(), kMost, "ckpt-track");
    if (!all && !is_theirs && all.error().sys_errno == ECONNRESET) return std::string();
    if (!all && !is_theirs && all.error().sys_errno == EAGAIN) all.error().code = Code::kBusy;
    CKPT_TRY_ASSIGN(text, std::move(all));
  }
  if (text.empty() && is_theirs) return fail(Code::kIo, "ckpt-track", "does not say which files were written");
  return text;
}

/// The names that the sockets of trackers of these processes have, or of those above them.
Result<std::set<std::string>> sockets_above(const std::vector<int>& pids) {
  std::set<std::string> out;
  for (const int pid : pids) {
    for (int at = pid; at > 0;) {
      const auto stat = proc::read_stat(at);
      if (!stat && at == pid) return stat.error();
      if (!stat || !out.insert(fmt::format("{}{}-{}", kTrackerSocket, at, stat->start_time)).second) break;
      at = stat->parent;
    }
  }
  return out;
}

}  // namespace

Result<WrittenFiles> written_files(const std::vector<int>& pids) {
  WrittenFiles out;
  auto folder = open_common_run_folder();
  if (!folder) return out;  // whoever tracks has one
  CKPT_TRY_ASSIGN(const std::set<std::string> theirs, sockets_above(pids));
  std::string processes;
  for (const int pid : pids) {
    CKPT_TRY_ASSIGN(const std::string name, name_of_process(pid));
    processes += name + " ";
  }
  for (const std::string& socket : trackers_in(folder->get())) {
    const auto text = ask_tracker(folder->get(), socket, processes, theirs.count(socket) != 0);
    if (!text && text.error().code == Code::kBusy) out.silent.push_back(socket);
    else if (!text) return text.error();
    for (size_t at = 0; text && at < text->size();) {
      const size_t end = std::min(text->find('\0', at), text->size());
      const std::string entry = text->substr(at, end - at);
      at = end + 1;
      if (entry == kNothingMissed) continue;
      if (entry == kSomethingMissed)
        return Error(Code::kIo, "ckpt-track", "has missed something: not all files that were written are known")
            .with_hint("--files open, or --files PATH, do not ask it");
      std::istringstream words(entry);
      WrittenFile file;
      if (!(words >> file.device >> file.inode) || words.get() != ' ' || !std::getline(words, file.path, '\0'))
        return fail(Code::kIo, "ckpt-track", "says what is not understood");
      out.files.push_back(std::move(file));
    }
  }
  return out;
}

}  // namespace ckpt::state
