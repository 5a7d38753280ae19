#include "lib/state/terminals/collect.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/state/external/capture.h"
#include "lib/state/terminals/capture.h"

namespace ckpt::capture {

using store::Descriptor;

Result<void> TerminalCollector::add(const Place& place, int index) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  ends_.push_back({place, index, std::move(theirs)});
  return {};
}

Result<void> TerminalCollector::settle() {
  if (ends_.empty()) return {};
  std::vector<int> fds;
  for (const OpenEnd& open : ends_) fds.push_back(open.fd.get());
  CKPT_TRY_ASSIGN(TerminalsFound found, describe_terminals(fds, context_.frozen()));
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
