// The descriptor table: objects made in ckpt, put to their numbers in the child.
#pragma once

#include <vector>

#include "lib/base/progress.h"
#include "lib/rebuild/child.h"
#include "lib/rebuild/files.h"
#include "lib/rebuild/inherited.h"
#include "lib/rebuild/reasons.h"
#include "lib/store/image.h"

namespace ckpt::rebuild {

struct DescriptorPlan {
  struct Placement {
    int source;  ///< inherited
    store::FdSlot slot;
  };
  std::vector<Placement> placements;
  std::vector<std::pair<int, const store::Descriptor*>> timers;  ///< inherited number, to be armed last
};

/// Makes pipes (with their contents), eventfds, timers, epoll and signal sets, takes over ckpt's own descriptors for
/// those of the surroundings. These need `shell_job`: without it each is a reason against.
DescriptorPlan make_descriptors(const store::ImageReader& image, const OpenedFiles& files, bool shell_job,
                                Inherited& inherited, Reasons& reasons);

/// First in the child: every number below `base` closed, then each of the process's own placed. `process`: its index.
void place_descriptors(const DescriptorPlan& plan, int process, int base, Script& script);
/// Once all are placed: epoll sets, owners of asynchronous files.
void connect_descriptors(const store::TreeImage& tree, int process, Child& child, Script& script);
/// Files of /proc/PID, which can be opened only now that the processes are there.
Result<void> open_proc_files(const store::TreeImage& tree, int process, Child& child);
/// Last: nothing of ckpt's stays open.
void drop_inherited(int base, Script& script);
/// Arms the timers with the time they had left. In ckpt, just before the release.
Result<void> arm_timer_descriptors(const DescriptorPlan& plan, ProgressSink& progress);

}  // namespace ckpt::rebuild
