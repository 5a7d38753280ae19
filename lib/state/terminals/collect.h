// Terminals among the descriptors of a tree: collected first, described together, since two ends make one terminal.
#pragma once

#include <vector>

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

class TerminalCollector {
 public:
  explicit TerminalCollector(DescriptorContext& context) : context_(context) {}
  /// `index`: of its descriptor in the image.
  Result<void> add(const Place& place, int index);
  /// All of them at once. One whose master is outside is an external resource.
  Result<void> settle();

 private:
  struct OpenEnd {
    Place place;
    int descriptor;
    UniqueFd fd;
  };
  /// A process in a further mount namespace has it of a devpts that is not the first process's.
  bool is_of_further_devpts(const OpenEnd& end) const;

  DescriptorContext& context_;
  std::vector<OpenEnd> ends_;
};

}  // namespace ckpt::capture
