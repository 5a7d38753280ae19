#include "lib/state/watches/collect.h"

#include <sched.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <thread>

#include "lib/base/threads.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

Result<bool> WatchCollector::take(const Place& place, bool inotify, Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  CKPT_TRY_ASSIGN(std::string text, DescriptorContext::fdinfo(place));
  if (!finder_) {
    CKPT_TRY_ASSIGN(FileFinder finder, FileFinder::create(known_folders()));
    finder_.emplace(std::move(finder));
  }
  Result<void> described;
  // The finder goes from folder to folder: not in a thread whose current one others use.
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::unshare(CLONE_FS) != 0) {
      described = sys_error(place.link, "cannot be looked into");
    } else if (inotify) {
      auto found = describe_inotify(theirs.get(), text, *finder_);
      if (found)
        d.object = static_cast<int>(context_.out.image.inotifies.size()),
        context_.out.image.inotifies.push_back(std::move(*found));
      else described = found.error();
    } else {
      auto found = describe_fanotify(theirs.get(), text, *finder_);
      if (found)
        d.object = static_cast<int>(context_.out.image.fanotifies.size()),
        context_.out.image.fanotifies.push_back(std::move(*found));
      else described = found.error();
    }
  });
  if (!started) return no_thread(place.link);
  apart.join();
  if (!described) return context_.block(place, described.error()), false;
  d.kind = inotify ? DescriptorKind::kInotify : DescriptorKind::kFanotify;
  return true;
}

/// Where a watched file may lie whose name the kernel has forgotten.
std::vector<std::string> WatchCollector::known_folders() const {
  std::set<std::string> folders;
  for (const store::FileIdentity& file : context_.out.image.files) {
    if (!file.path.empty() && file.path[0] == '/')
      folders.insert(S_ISDIR(file.mode) ? file.path : std::filesystem::path(file.path).parent_path().string());
  }
  return {folders.begin(), folders.end()};
}

}  // namespace ckpt::capture
