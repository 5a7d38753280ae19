// What a core file of this process holds: coredump_filter in core(5). The setting goes on to children, and to what
// they execute.
#pragma once

namespace ckpt {

/// Should this process crash, none of its memory but what it was loaded from: there are secrets in it.
void keep_memory_out_of_cores();
/// In a child, before it executes what is not ckpt: as it was at first. Async-signal-safe.
void put_core_filter_back();

}  // namespace ckpt
