// Users, groups and capabilities, thread by thread.
#pragma once

#include <functional>

#include "lib/state/threads/restore.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Adds what makes ckpt's own credentials those of the thread; nothing where they are the same already. Capabilities
/// are kept across the change of user and dropped last. The last batch of a thread that needs any privilege.
Result<void> set_credentials(const store::ProcessImage& image, RestorerArea& area, ThreadBatches& batches);

/// Adds what `calls` adds, made with the thread's users, groups and effective capabilities, and then with ckpt's own
/// again.
Result<void> add_with_credentials(const store::Thread& thread, RestorerArea& area, SyscallBatch& batch,
                                  const std::function<void()>& calls);

}  // namespace ckpt::restore
