#include "lib/engine/estimate.h"

#include <sys/statvfs.h>

#include <algorithm>

#include "lib/base/text.h"
#include "lib/engine/capture.h"
#include "lib/engine/safe_points.h"
#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"
#include "lib/store/chunk.h"

namespace ckpt::engine {

using capture::BlockPlan;
using capture::ScanFor;

namespace {

constexpr size_t kMostSamples = 256;  // 16 MiB, 20 ms

/// The pages of one block, packed; empty where they cannot be read any more.
std::vector<std::byte> read_block(int pid, const BlockPlan& block) {
  std::vector<std::byte> out(store::page_count(block.data_mask) * store::kPageSize);
  std::vector<iovec> pages;
  for (unsigned i = 0; i < store::kBlockSize / store::kPageSize; ++i) {
    if ((block.data_mask >> i & 1) == 0) continue;
    pages.push_back({reinterpret_cast<void*>(block.address + i * store::kPageSize), store::kPageSize});
  }
  if (!proc::read_ranges(pid, pages, out)) out.clear();
  return out;
}

uint64_t stored_size(const BlockPlan& block, ByteSpan pages, store::Compressor& compressor, bool compress) {
  const uint16_t keep = block.data_mask & static_cast<uint16_t>(~store::find_zero_pages(block.data_mask, pages));
  if (keep == 0) return 0;
  std::vector<std::byte> packed(store::page_count(keep) * store::kPageSize);
  store::pack_pages(block.data_mask, pages, keep, packed.data());
  const ByteSpan frame = compress ? compressor.try_compress(packed) : ByteSpan();
  return frame.empty() ? packed.size() : frame.size();
}

/// What these blocks would take, by some of them that lie evenly among all.
uint64_t expected_bytes(int pid, const std::vector<BlockPlan>& blocks, bool compress) {
  const size_t step = blocks.size() / kMostSamples + 1;
  store::Compressor compressor;
  uint64_t pages = 0, read = 0, stored = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    pages += store::page_count(blocks[i].data_mask);
    if (i % step != 0) continue;
    const std::vector<std::byte> data = read_block(pid, blocks[i]);
    if (data.empty()) continue;
    read += data.size() / store::kPageSize;
    stored += stored_size(blocks[i], data, compressor, compress);
  }
  if (read == 0) return pages * store::kPageSize;
  return static_cast<uint64_t>(static_cast<double>(stored) / static_cast<double>(read) * static_cast<double>(pages));
}

Result<uint64_t> free_bytes(const std::filesystem::path& folder) {
  struct statvfs st{};
  if (::statvfs(folder.c_str(), &st) != 0) return sys_error(folder.string(), "cannot tell the free space");
  return static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
}

}  // namespace

Result<DumpEstimate> estimate(Capture& capture) {
  const DumpOptions& options = capture.context.options;
  NewImage& image = capture.image;
  Tracees& tracees = capture.tracees;
  CKPT_TRY(capture.context.check_end());
  CKPT_TRY(tracees.collect());
  if (options.safe_points.wait) CKPT_TRY(SafePoints::find(tracees.members()));
  CKPT_TRY(tracees.lock());
  CKPT_TRY(capture.devices.prepare());
  CKPT_TRY(image.choose_parent(tracees));
  CKPT_TRY(image.make_writer());
  DumpEstimate out;
  CKPT_TRY_ASSIGN(out.room_bytes, free_bytes(image.writer().staging()));
  image.discard();
  store::TreeImage& tree = tracees.running().image;
  uint64_t largest = 0;
  for (store::ProcessImage& process : tree.processes) {
    CKPT_TRY(capture.context.cancel.check());
    out.threads += static_cast<int>(process.threads.size());
    out.maps += static_cast<int>(process.maps.size());
    if (process.maps.empty()) continue;
    CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(process.pid));
    const bool tracked = tracees.of(process.pid).tracked() && pagemap.can_scan();
    const ScanFor what = tracked ? ScanFor::kChanges : ScanFor::kPopulated;
    CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, process.maps, what));
    const capture::PagePlan plan = capture::plan_data(found, what, process.maps);
    out.pages_to_copy += plan.pages_data;
    out.pages_scanned += plan.pages_data + plan.pages_zero;
    if (tracked) out.pages_unchanged += capture::count_unchanged(capture::plan_unchanged(found, process.maps));
    const uint64_t bytes = expected_bytes(process.pid, plan.snapshot, options.compress) +
                           expected_bytes(process.pid, plan.live, options.compress);
    out.bytes_expected += bytes;
    largest = std::max(largest, bytes);
  }
  out.pages_scanned += out.pages_unchanged;
  out.process = proc::describe_pid(options.pid);
  out.processes = static_cast<int>(tree.processes.size());
  out.parent = image.parent();
  out.descriptors = static_cast<int>(tree.descriptors.size());
  // What several processes share is stored once, and what is as in the parent not at all: these may take less than was
  // counted.
  const bool compared = !image.parent().empty() && !tracees.any_tracked();
  if (!compared && largest > out.room_bytes) {
    return Error(
        Code::kNoRoom, options.dir.string(),
        "is expected to take " + human_bytes(largest) + ", and " + human_bytes(out.room_bytes) + " are free there");
  }
  return out;
}

}  // namespace ckpt::engine
