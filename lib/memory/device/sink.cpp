#include "lib/memory/device/sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/store/chunk.h"

namespace ckpt::capture {

namespace {

constexpr uint16_t kAllPages = 0xffff;

store::Block block_of(int space, device::Address chunk) {
  store::Block out;
  out.address = store::space_base(space) + chunk.value;
  return out;
}

store::Block data_block(int space, device::Address chunk, ByteSpan bytes) {
  store::Block out = block_of(space, chunk);
  out.data_mask = kAllPages, out.data = bytes;
  return out;
}

}  // namespace

Result<void> ImageSink::pre_copied(int space, device::Address chunk, ByteSpan bytes, unsigned iteration) {
  return writer_.add_precopied(data_block(space, chunk, bytes), iteration);
}

Result<void> ImageSink::pre_copied_zero(int space, device::Address chunk, unsigned iteration) {
  store::Block block = block_of(space, chunk);
  block.zero_mask = kAllPages;
  return writer_.add_precopied(block, iteration);
}

Result<void> ImageSink::last(int space, device::Address chunk, ByteSpan bytes) {
  return writer_.add_block(data_block(space, chunk, bytes));
}

Result<void> ImageSink::zero(int space, device::Address chunk) {
  store::Block block = block_of(space, chunk);
  block.zero_mask = kAllPages;
  return writer_.add_block(block);
}

Result<void> ImageSink::keep(int space, device::Address chunk) {
  store::Block block = block_of(space, chunk);
  block.parent_mask = kAllPages;
  return writer_.add_block(block);
}

Result<void> ImageContent::read(int space, device::Address chunk, MutableByteSpan out) {
  CKPT_ASSERT(out.size() == kDeviceChunk);
  const uint64_t address = store::space_base(space) + chunk.value;
  const auto& blocks = reader_.blocks();
  auto found = std::lower_bound(blocks.begin(), blocks.end(), address,
                                [](const auto& block, uint64_t at) { return block.address < at; });
  if (found == blocks.end() || found->address != address || (found->data_mask | found->zero_mask) != kAllPages) {
    return fail(Code::kCorrupt, reader_.path().string(),
                fmt::format("has not all of the device memory at {:#x}", chunk.value));
  }
  CKPT_TRY_ASSIGN(size_t size, reader_.read_block(static_cast<size_t>(found - blocks.begin()), out));
  if (size == kDeviceChunk) return {};
  // Packed pages to their places, the last first; zeros between.
  for (unsigned page = store::kBlockPages; page-- != 0;) {
    std::byte* to = out.data() + page * store::kPageSize;
    const std::byte* packed = out.data() + store::page_rank(found->data_mask, page) * store::kPageSize;
    if ((found->data_mask >> page & 1) != 0) std::memmove(to, packed, store::kPageSize);
    else std::memset(to, 0, store::kPageSize);
  }
  return {};
}

}  // namespace ckpt::capture
