// inotify and fanotify groups among the descriptors of a tree.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/state/descriptors/context.h"
#include "lib/state/watches/capture.h"

namespace ckpt::capture {

class WatchCollector {
 public:
  explicit WatchCollector(DescriptorContext& context) : context_(context) {}
  /// Fills kind and state of `d`; false: a blocker was noted instead.
  Result<bool> take(const Place& place, bool inotify, store::Descriptor& d);

 private:
  std::vector<std::string> known_folders() const;

  DescriptorContext& context_;
  std::optional<FileFinder> finder_;
};

}  // namespace ckpt::capture
