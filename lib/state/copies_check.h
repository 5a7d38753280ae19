// What there can be only once, so that an image with it cannot become several processes side by side.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

struct CopiesOptions {
  std::vector<std::string> shared_files;  ///< paths and patterns (fnmatch) of files that all of them may write to
  std::set<int> outputs;  ///< descriptors of the first process that each gets one of its own for
  int signal = 0;         ///< what each gets once it runs; 0: none
};

/// A reason for everything that several restores of the image would have in common and cannot: addresses of sockets and
/// connections (they share the network of their host), locks, files they would write over each other, System V IPC,
/// message queues, terminals, named pipes, GPUs. What they share for good or ill is noted: a file they append to.
void check_copies(const store::TreeImage& tree, const CopiesOptions& options, Reasons& reasons,
                  ProgressSink& progress);

}  // namespace ckpt::restore
