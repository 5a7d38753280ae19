#include "lib/state/terminals/collect.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>

#include "lib/base/io.h"
#include "lib/state/external/capture.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/terminals/capture.h"

namespace ckpt::capture {

using store::Descriptor;

namespace {

/// The session that a terminal controls, by the leader's own word: the master, which would tell it, is outside.
void find_session(const Walk& walk, store::Terminal& terminal) {
  constexpr uint64_t kLimit = 4096;
  constexpr unsigned kSlaves = 136, kPerMajor = 256;
  const unsigned index = static_cast<unsigned>(terminal.index);
  const auto device = static_cast<int>(makedev(kSlaves + index / kPerMajor, index % kPerMajor));
  for (const Member& member : walk.members) {
    auto text = io::read_file(fmt::format("/proc/{}/stat", member.entry.pid), kLimit);
    const size_t name_end = text ? text->rfind(')') : std::string::npos;
    int session = 0, controlling = 0, foreground = 0;
    if (name_end == std::string::npos ||
        std::sscanf(text->c_str() + name_end + 1, " %*c %*d %*d %d %d %d", &session, &controlling, &foreground) != 3)
      continue;
    if (session != member.entry.pid || controlling != device) continue;
    terminal.session = session;
    if (foreground > 0) terminal.foreground = foreground;
  }
}

}  // namespace

Result<void> TerminalCollector::add(const Place& place, int index) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  ends_.push_back({place, index, std::move(theirs)});
  return {};
}

bool TerminalCollector::is_of_further_devpts(const OpenEnd& end) const {
  const int mounts = context_.walk.mounts_of(end.place.process);
  if (mounts < 0) return false;
  constexpr unsigned kSlaveFirst = 136, kSlaveLast = 143;
  const auto devpts_in = [](int where) {
    const state::InMounts there(where);
    struct stat st {};
    return state::stat_in_tree("/dev/pts", st) ? st.st_dev : dev_t{0};
  };
  const dev_t first = devpts_in(-1);
  struct stat open {};
  if (::fstat(end.fd.get(), &open) != 0 || first == 0) return true;
  const unsigned major_number = major(open.st_rdev);
  const bool is_slave = major_number >= kSlaveFirst && major_number <= kSlaveLast;
  // A master or /dev/tty that was opened elsewhere tells nothing of where it belongs but by its namespace.
  return open.st_dev != first && (is_slave || devpts_in(mounts) != first);
}

Result<void> TerminalCollector::settle() {
  std::erase_if(ends_, [&](const OpenEnd& end) {
    const bool is_foreign = is_of_further_devpts(end);
    if (is_foreign)
      context_.block(end.place, "a terminal of a further mount namespace's own devpts, which is not supported");
    return is_foreign;
  });
  if (ends_.empty()) return {};
  std::vector<int> fds;
  for (const OpenEnd& open : ends_) fds.push_back(open.fd.get());
  CKPT_TRY_ASSIGN(TerminalsFound found,
                  describe_terminals(fds, context_.frozen(), context_.walk.options.external.adopt_terminals));
  for (size_t adopted : found.adopted) find_session(context_.walk, found.terminals[adopted]);
  for (size_t i = 0; i < ends_.size(); ++i) {
    const Place& place = ends_[i].place;
    Descriptor& d = context_.out.image.descriptors[static_cast<size_t>(ends_[i].descriptor)];
    if (found.ends[i].terminal < 0) {
      external::take_terminal(context_, place, "tty " + place.link,
                              "a terminal (" + place.link + ") from outside the tree", d);
      continue;
    }
    d.object = static_cast<int>(context_.out.image.terminal_ends.size());
    context_.out.image.terminal_ends.push_back(found.ends[i]);
  }
  for (const auto& [index, why] : found.refused) context_.block(ends_[index].place, why);
  context_.out.image.terminals = std::move(found.terminals);
  context_.out.notes.insert(context_.out.notes.end(), found.notes.begin(), found.notes.end());
  if (context_.walk.options.earlier != nullptr) return {};
  std::vector<int> pids;
  for (const Member& member : context_.walk.members) pids.push_back(member.entry.pid);
  std::sort(pids.begin(), pids.end());
  for (const auto& [index, who] : outside_users_of_terminals(context_.out.image.terminals, pids)) {
    context_.out.blockers.push_back(
        {fmt::format("terminal /dev/pts/{}", index), "is in use by " + who + ", which is outside", ""});
  }
  return {};
}

}  // namespace ckpt::capture
