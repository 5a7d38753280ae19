// NUMA policies and memory protection keys, set by the process itself.
#pragma once

#include <cstdint>

#include "lib/rebuild/reasons.h"
#include "lib/rebuild/script.h"
#include "lib/store/placement_image.h"

namespace ckpt::rebuild {

/// A policy for nodes of which this machine has none is a reason against (kUnsupported). `subject`: the thread or
/// mapping.
void check_policy(const store::MemoryPolicy& policy, const std::string& subject, Reasons& reasons);

/// Before the mapping is filled, which is when its memory is placed.
void set_mapping_policy(const store::MemoryPolicy& policy, uint64_t start, uint64_t end, Scratch& scratch,
                        Script& script);
/// In the thread itself, after memory is filled and its own scripts have nothing left to allocate.
void set_thread_policy(const store::MemoryPolicy& policy, Scratch& scratch, Script& script);

/// Once a process, in its leader, before its extended registers are set: allocating a key changes the thread's rights.
void allocate_keys(uint32_t allocated, Script& script);
/// In place of the mprotect of a mapping with a key that is among those allocated. Another is the kernel's own for
/// memory that may only be executed, which an ordinary mprotect brings back.
void protect_with_key(uint64_t start, uint64_t end, int prot, int key, Script& script);

}  // namespace ckpt::rebuild
