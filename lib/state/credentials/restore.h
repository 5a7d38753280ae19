// Users, groups and capabilities, thread by thread.
#pragma once

#include <functional>

#include "lib/state/threads/restore.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// kUnsupported: ids that a user namespace which is to be made cannot give, processes that cannot enter it.
Result<void> check_credentials(const store::TreeImage& tree);

/// Adds what makes a process with one thread, of ckpt's credentials, enter the user namespace of the tree with the ids
/// of its first thread; nothing where there is none, or where it was born in it. From then on it has no rights outside.
/// `handle`: its descriptor of the namespace.
Result<void> enter_user_namespace(const store::ProcessImage& image, int handle, RestorerArea& area,
                                  SyscallBatch& batch);

/// Adds what makes ckpt's own credentials (in a user namespace: those of who has just entered it) those of the thread;
/// nothing where they are the same already. Capabilities are kept across the change of user and dropped last. The last
/// batch of a thread that needs any privilege.
Result<void> set_credentials(const store::ProcessImage& image, RestorerArea& area, ThreadBatches& batches);

/// Adds what `calls` adds, made with the thread's users, groups and effective capabilities, and then with ckpt's own
/// again.
Result<void> add_with_credentials(const store::Thread& thread, RestorerArea& area, SyscallBatch& batch,
                                  const std::function<void()>& calls);

}  // namespace ckpt::restore
