// The descriptor table: objects made in ckpt, put to their numbers in the child.
#pragma once

#include <map>
#include <vector>

#include "lib/base/progress.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/external/options.h"
#include "lib/state/files/restore.h"
#include "lib/state/reasons.h"
#include "lib/state/sockets/restore.h"
#include "lib/state/tree/child.h"
#include "lib/store/image.h"

namespace ckpt::restore {

struct DescriptorPlan {
  struct Placement {
    int source;  ///< inherited
    store::FdSlot slot;
  };
  std::vector<Placement> placements;
  std::map<int, int> sources;  ///< inherited number of each open file description that has one, by its index
  int source(int description) const {  ///< -1: none
    const auto found = sources.find(description);
    return found == sources.end() ? -1 : found->second;
  }
  std::vector<std::pair<int, const store::Descriptor*>> timers;  ///< inherited number, to be armed last
};

struct DescriptorOptions {
  state::ExternalOptions external;  ///< what these do not allow is a reason against
  bool dry_run = false;    ///< terminals, file locks and the content of named pipes are only looked at
};

/// Makes pipes (with their contents), eventfds, timers, epoll and signal sets, terminals, takes over ckpt's own
/// descriptors for external resources. File locks are taken.
DescriptorPlan make_descriptors(const store::ImageReader& image, const OpenedFiles& files,
                                const DescriptorOptions& options, Inherited& inherited, Reasons& reasons);

/// What others could notice, once nothing stands in the way: message queues, sockets with their queues. Their numbers
/// in peer credentials must be free still, so no process of the tree exists.
Result<void> add_sockets_and_queues(const store::ImageReader& image, Inherited& inherited, ProgressSink& progress,
                                    Sockets& sockets, DescriptorPlan& plan);
/// Once those are made that may be registered files of a ring.
Result<void> add_io_urings(const store::ImageReader& image, Inherited& inherited, OpenedFiles& files,
                           DescriptorPlan& plan);
/// Last of all, when ckpt opens no file any more: it would show in what they watch.
Result<void> add_watches(const store::TreeImage& tree, Inherited& inherited, DescriptorPlan& plan);

/// First in the child: every number below `base` closed, then each of the process's own placed. `process`: its index.
void place_descriptors(const store::TreeImage& tree, const DescriptorPlan& plan, int process, int base,
                       RestorerArea& area, SyscallBatch& batch);
/// Once all are placed: epoll sets, owners of asynchronous files.
void connect_descriptors(const store::TreeImage& tree, int process, Child& child, SyscallBatch& batch);
/// Last: nothing of ckpt's stays open.
void drop_inherited(int base, SyscallBatch& batch);
/// Arms the timers with the time they had left. In ckpt, just before the release.
Result<void> arm_timer_descriptors(const DescriptorPlan& plan, ProgressSink& progress);

}  // namespace ckpt::restore
