// How an io_uring is shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/state/io_uring/record.h"

namespace ckpt::state {

inline std::string show(const store::IoUring& ring) {
  std::string out =
      fmt::format("{} + {} entries, {} requests so far", ring.sq_entries, ring.cq_entries, ring.submitted);
  if (!ring.files.empty()) out += fmt::format(", {} registered files", ring.files.size());
  if (!ring.buffers.empty()) out += fmt::format(", {} registered buffers", ring.buffers.size());
  if (ring.eventfd >= 0) out += ", tells an eventfd";
  if (!ring.poller.empty()) out += ", polled by a thread of the kernel";
  if (!ring.personalities.empty()) out += fmt::format(", {} registered credentials", ring.personalities.size());
  if (!ring.restrictions.empty()) out += ", restricted";
  if (ring.disabled) out += ", not enabled";
  return out;
}

}  // namespace ckpt::state
