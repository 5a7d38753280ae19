// Epoll sets made again in ckpt, and filled by the processes.
#pragma once

#include <map>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/tree/script.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

Result<UniqueFd> make_epoll(const store::Descriptor& descriptor);
/// Adds what the set watches under numbers that lead there still, in the table of a process. Once all descriptors are
/// placed.
void fill_epoll(const store::Descriptor& descriptor, int fd, int process, RestorerArea& scratch, Script& script);
/// What a set watches under a number that has another meaning by now gets that number for a moment. Before any
/// descriptor is placed. `sources`: the inherited number of each open file description that has one, by its index.
void watch_replaced(const store::TreeImage& tree, const std::map<int, int>& sources, int process, RestorerArea& scratch,
                    Script& script);

}  // namespace ckpt::restore
