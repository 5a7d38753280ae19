#include "lib/state/descriptors/show.h"

#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/files/show.h"
#include "lib/state/io_uring/show.h"
#include "lib/state/pidfds/show.h"
#include "lib/state/pipes/show.h"
#include "lib/state/posix_queues/show.h"
#include "lib/state/shared_memory/show.h"
#include "lib/state/sockets/show.h"
#include "lib/state/terminals/show.h"
#include "lib/state/watches/show.h"

namespace ckpt::state {

namespace {

/// Of a list of the image; an index that leads nowhere shows as nothing.
template <class T>
std::string show_one(const std::vector<T>& list, int index) {
  return index < 0 ? "" : show(list[static_cast<size_t>(index)]);
}

}  // namespace

std::string show(const store::TreeImage& tree, const store::Descriptor& d) {
  switch (d.kind) {
    case store::DescriptorKind::kFile:
    case store::DescriptorKind::kDevice:
    case store::DescriptorKind::kFifo: return show_one(tree.files, d.file);
    case store::DescriptorKind::kPipe: return d.pipe < 0 ? "" : show(d.pipe, tree.pipes[static_cast<size_t>(d.pipe)]);
#define CKPT_SHOW(Type, member, inode) \
  case store::DescriptorKind::k##Type: \
    return show(d.member);
      CKPT_PLAIN_KINDS(CKPT_SHOW)
#undef CKPT_SHOW
    case store::DescriptorKind::kProcFile:
    case store::DescriptorKind::kExternal: return d.external;
    case store::DescriptorKind::kMemfd: return show_one(tree.shared_memory, d.shared_memory);
    case store::DescriptorKind::kSocket: return show_one(tree.sockets, d.object);
    case store::DescriptorKind::kTerminal:
      return d.object < 0 ? "" : show(tree.terminal_ends[static_cast<size_t>(d.object)], tree.terminals);
    case store::DescriptorKind::kInotify: return show_one(tree.inotifies, d.object);
    case store::DescriptorKind::kFanotify: return show_one(tree.fanotifies, d.object);
    case store::DescriptorKind::kPidfd: return show_one(tree.process_handles, d.object);
    case store::DescriptorKind::kPosixQueue: return show_one(tree.posix_queues, d.object);
    case store::DescriptorKind::kIoUring: return show_one(tree.io_urings, d.object);
  }
  return "";
}

}  // namespace ckpt::state
