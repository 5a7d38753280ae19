#include "lib/state/io_uring/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace ckpt::state {

namespace {

constexpr uint64_t kPage = 4096;

/// What lies beyond the end of a ring's memory may be mapped, and cannot be read: the kernel is asked to copy, which
/// fails where a load would end ckpt.
bool copy_own(const std::byte* from, MutableByteSpan to) {
  const iovec source{const_cast<std::byte*>(from), to.size()}, target{to.data(), to.size()};
  return ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0) == static_cast<ssize_t>(to.size());
}

Result<Mapping> map_part(int fd, uint64_t size, uint64_t offset) {
  void* memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return sys_error("an io_uring", "its memory cannot be mapped");
  return Mapping(memory, size);
}

/// Whether the ring has that many bytes there, as far as whole pages tell.
bool has_bytes(int fd, uint64_t size, uint64_t offset) {
  auto mapped = map_part(fd, size, offset);
  std::byte last{};
  return mapped && copy_own(mapped->data() + size - 1, {&last, 1});
}

uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage; }

}  // namespace

Result<UniqueFd> make_ring(io_uring_params& params, uint32_t entries) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params)));
  if (fd) return fd;
  const int error = errno;
  Error out = sys_error(error, "an io_uring", "cannot be made here");
  out.code = error == ENOMEM ? Code::kNoRoom : Code::kUnsupported;
  if (error == EPERM) out.hint = "the setting kernel.io_uring_disabled forbids it (sysctl)";
  return out;
}

Result<UringLayout> uring_layout() {
  io_uring_params params{};
  CKPT_TRY(make_ring(params, 1));
  return UringLayout{params.sq_off, params.cq_off};
}

uint64_t array_offset(const store::IoUring& ring, const UringLayout& layout) {
  constexpr uint64_t kCacheLine = 64;
  const uint64_t end = layout.cq.cqes + uint64_t{ring.cq_entries} * ring.cqe_size;
  return (end + kCacheLine - 1) / kCacheLine * kCacheLine;
}

uint64_t queues_size(const store::IoUring& ring, const UringLayout& layout) {
  return array_offset(ring, layout) + (ring.no_array ? 0 : uint64_t{ring.sq_entries} * sizeof(uint32_t));
}

uint64_t entries_size(const store::IoUring& ring) { return uint64_t{ring.sq_entries} * ring.sqe_size; }

Result<UringMemory> UringMemory::map(int fd, const store::IoUring& ring, const UringLayout& layout) {
  UringMemory out;
  CKPT_TRY_ASSIGN(out.queues_, map_part(fd, queues_size(ring, layout), kUringQueues));
  CKPT_TRY_ASSIGN(out.entries_, map_part(fd, entries_size(ring), kUringEntries));
  return out;
}

Result<void> UringMemory::read(MutableByteSpan queues, MutableByteSpan entries) const {
  if (copy_own(queues_.data(), queues) && copy_own(entries_.data(), entries)) return {};
  return fail(Code::kUnsupported, "an io_uring", "has less memory than its size says");
}

/// Entries of twice the size show by the number of pages, which is the same for small rings; those are taken for plain
/// ones: only commands to devices, which cannot be carried, have the others.
Result<void> find_shape(int fd, const UringLayout& layout, store::IoUring& ring) {
  ring.sqe_size = 64, ring.cqe_size = 16, ring.no_array = false;
  const uint64_t plain = entries_size(ring);
  if (pages(2 * plain) > pages(plain) && has_bytes(fd, 2 * plain, kUringEntries)) ring.sqe_size = 128;
  const uint64_t queues = queues_size(ring, layout);
  store::IoUring large = ring;
  large.cqe_size = 32, large.no_array = true;
  const uint64_t large_queues = queues_size(large, layout);
  if (pages(large_queues) > pages(queues) && has_bytes(fd, large_queues, kUringQueues)) ring.cqe_size = 32;
  if (!has_bytes(fd, queues_size(ring, layout), kUringQueues)) {
    ring.no_array = true;
    return {};
  }
  // The rest of the last page is zero where there is no array. Where there is one a library has written 0, 1, 2, ...
  // to it, which does what no array does; it is zero as long as a program uses the first entry alone.
  if (ring.sq_entries == 1) return {};
  CKPT_TRY_ASSIGN(UringMemory memory, UringMemory::map(fd, ring, layout));
  std::vector<std::byte> array(ring.sq_entries * sizeof(uint32_t));
  const auto is_zero = [](const std::vector<std::byte>& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  };
  ring.no_array = !copy_own(memory.queues() + array_offset(ring, layout), array);
  if (ring.no_array || !is_zero(array)) return {};
  std::vector<std::byte> others(entries_size(ring) - ring.sqe_size);
  const bool readable = copy_own(memory.entries() + ring.sqe_size, others);
  ring.no_array = ring.submitted < 2 || !readable || !is_zero(others);
  return {};
}

}  // namespace ckpt::state
