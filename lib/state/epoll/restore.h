// Epoll sets made again in ckpt, and filled by the processes.
#pragma once

#include <map>

#include "lib/base/progress.h"
#include "lib/state/tree/child.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Adds what the set watches under numbers that lead there still, in the table of a process. Once all descriptors are
/// placed.
void fill_epoll(const store::Descriptor& descriptor, int fd, int process, RestorerArea& area, SyscallBatch& batch);
/// After that batch: a one-shot entry that had fired has fired again if its descriptor was ready for anything; any
/// other has the events that it can be given, which is said.
Result<void> settle_fired(const store::TreeImage& tree, int process, Child& child, ProgressSink& progress);
/// What a set watches under a number that has another meaning by now gets that number for a moment. Before any
/// descriptor is placed. `sources`: the inherited number of each open file description that has one, by its index.
void watch_replaced(const store::TreeImage& tree, const std::map<int, int>& sources, int process, RestorerArea& area,
                    SyscallBatch& batch);

}  // namespace ckpt::restore
