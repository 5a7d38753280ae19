#include "lib/flash/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/proc/memory_room.h"

namespace ckpt::flash {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kTouched = uint64_t{64} << 20;  ///< bytes at once
constexpr uint64_t kHugePage = uint64_t{2} << 20;

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

uint64_t realtime_us() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

/// Nothing on overflow, or past the limit.
std::optional<SegmentShape> lay_out(uint32_t rank, uint32_t world, uint32_t buffers, uint64_t layout_bytes,
                                    uint64_t data_bytes, uint64_t objects_capacity) {
  if (buffers == 0 || buffers > kMostBuffers || layout_bytes > kMostLayoutBytes || data_bytes > kMostSegmentBytes ||
      objects_capacity > kMostSegmentBytes)
    return std::nullopt;
  SegmentShape out{rank, world, buffers, layout_bytes, data_bytes, objects_capacity, 0, 0, 0};
  out.buffer_offset = align_up(kHeaderBytes + layout_bytes, kHugePage);
  out.buffer_stride = align_up(data_bytes + objects_capacity, kBufferAlignment);
  out.segment_bytes = out.buffer_offset + buffers * out.buffer_stride;
  if (out.segment_bytes > kMostSegmentBytes) return std::nullopt;
  return out;
}

}  // namespace

uint32_t buffers_for(uint64_t bytes) {
  uint64_t available = UINT64_MAX;
  for (const proc::MemoryRoom& room : proc::read_memory_room(::getpid())) available = std::min(available, room.bytes);
  if (available == UINT64_MAX) return 1;  // nothing can be read
  return available / 4 >= bytes ? 2 : 1;
}

Result<std::shared_ptr<Segment>> Segment::create(uint32_t rank, uint32_t world, std::string layout,
                                                 uint64_t objects_capacity, uint32_t buffers) {
  std::shared_ptr<Segment> out(new Segment);
  CKPT_TRY_ASSIGN(out->layout_, decode_layout(as_bytes(layout)));
  auto shape = lay_out(rank, world, buffers, layout.size(), out->layout_.data_bytes, objects_capacity);
  if (!shape) return fail(Code::kUsage, "", "the state is too large for one segment");
  out->shape_ = *shape;
  out->layout_text_ = std::move(layout);
  out->fd_.reset(::memfd_create("ckpt-flash", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!out->fd_) return sys_error("memfd", "cannot make shared memory");
  if (::ftruncate(out->fd_.get(), static_cast<off_t>(shape->segment_bytes)) != 0 ||
      ::fcntl(out->fd_.get(), F_ADD_SEALS, kSeals) != 0)
    return sys_error("memfd", "cannot set the size of shared memory");
  CKPT_TRY(out->map_header());
  SegmentHeader& header = *new (out->header_) SegmentHeader();
  std::memcpy(header.magic, kSegmentMagic, sizeof kSegmentMagic);
  header.version = kProtocolVersion;
  header.buffers = buffers;
  header.rank = rank;
  header.world = world;
  header.layout_offset = kHeaderBytes;
  header.layout_bytes = shape->layout_bytes;
  header.buffer_offset = shape->buffer_offset;
  header.buffer_stride = shape->buffer_stride;
  header.data_bytes = shape->data_bytes;
  header.objects_capacity = objects_capacity;
  header.segment_bytes = shape->segment_bytes;
  CKPT_TRY(io::pwrite_all(out->fd_.get(), as_bytes(out->layout_text_), kHeaderBytes, "memfd"));
  return out;
}

Result<std::shared_ptr<Segment>> Segment::adopt(UniqueFd fd) {
  std::shared_ptr<Segment> out(new Segment);
  out->fd_ = std::move(fd);
  const int seals = ::fcntl(out->fd_.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return fail(Code::kCorrupt, "segment", "is no shared memory whose size is sealed");
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(out->fd_.get(), "segment"));
  if (st.st_size < static_cast<off_t>(kHeaderBytes)) return fail(Code::kCorrupt, "segment", "is too small");
  CKPT_TRY(out->map_header());
  SegmentHeader& header = out->header();
  // Copied first: its owner can still write to it.
  const uint32_t rank = header.rank, world = header.world, buffers = header.buffers;
  const uint64_t layout_bytes = header.layout_bytes, data_bytes = header.data_bytes, objects = header.objects_capacity;
  auto shape = lay_out(rank, world, buffers, layout_bytes, data_bytes, objects);
  if (std::memcmp(header.magic, kSegmentMagic, sizeof kSegmentMagic) != 0 || header.version != kProtocolVersion ||
      !shape || shape->segment_bytes != static_cast<uint64_t>(st.st_size) || world == 0 || world > kMostRanks ||
      rank >= world || header.layout_offset != kHeaderBytes || header.buffer_offset != shape->buffer_offset ||
      header.buffer_stride != shape->buffer_stride)
    return fail(Code::kCorrupt, "segment", "has a header that is none of this version");
  out->shape_ = *shape;
  out->layout_text_.resize(layout_bytes);
  CKPT_TRY(io::pread_exact(out->fd_.get(),
                           {reinterpret_cast<std::byte*>(out->layout_text_.data()), out->layout_text_.size()},
                           kHeaderBytes, "segment"));
  CKPT_TRY_ASSIGN(out->layout_, decode_layout(as_bytes(out->layout_text_)));
  if (out->layout_.data_bytes != data_bytes) return fail(Code::kCorrupt, "segment", "has a layout of another size");
  return out;
}

Segment::~Segment() {
  if (header_ != nullptr) ::munmap(header_, kHeaderBytes);
}

Result<void> Segment::map_header() {
  header_ = ::mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (header_ != MAP_FAILED) return {};
  header_ = nullptr;
  return sys_error("segment", "cannot map");
}

SlotState Segment::slot(uint32_t buffer) const {
  const Slot& slot = header().slots[buffer];
  SlotState out;
  out.sequence = slot.sequence.load(std::memory_order_acquire);
  out.step = slot.step.load(std::memory_order_relaxed);
  out.objects_bytes = slot.objects_bytes.load(std::memory_order_relaxed);
  out.saved_us = slot.saved_us.load(std::memory_order_relaxed);
  if (out.objects_bytes > shape_.objects_capacity || out.step == kAnyStep) out.sequence = out.objects_bytes = 0;
  return out;
}

void Segment::begin(uint32_t buffer) {
  Slot& slot = header().slots[buffer];
  const uint64_t was = slot.sequence.load();
  slot.sequence.store(was + 1 + was % 2);  // odd, whatever it was
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Segment::commit(uint32_t buffer, uint64_t step, uint64_t objects_bytes) {
  Slot& slot = header().slots[buffer];
  slot.step.store(step);
  slot.objects_bytes.store(objects_bytes);
  slot.saved_us.store(realtime_us());
  const uint64_t was = slot.sequence.load();
  slot.sequence.store(was + was % 2, std::memory_order_release);
}

void Segment::clear(uint32_t buffer) { header().slots[buffer].sequence.store(0); }

void Segment::touch(const std::atomic<bool>& stop) const {
  const uint64_t begin = shape_.buffer_offset, end = shape_.segment_bytes;
  for (uint64_t at = begin; at < end && !stop.load(std::memory_order_relaxed); at += kTouched) {
    const uint64_t size = std::min(kTouched, end - at);
    void* part = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), static_cast<off_t>(at));
    if (part == MAP_FAILED) return;
    ::madvise(part, size, MADV_HUGEPAGE);
    const int failed = ::madvise(part, size, MADV_POPULATE_WRITE);
    ::munmap(part, size);
    if (failed != 0) return;
  }
}

}  // namespace ckpt::flash
