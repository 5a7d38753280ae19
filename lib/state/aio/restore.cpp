#include "lib/state/aio/restore.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "lib/proc/remote_memory.h"
#include "lib/state/aio/ring.h"
#include "lib/state/mappings/plan.h"

namespace ckpt::restore {

using state::AioRing;
using store::AioContext;

namespace {

std::string aio_subject(const AioContext& context) { return fmt::format("the AIO context at {:x}", context.start); }

/// One that is being made, wherever the kernel has put its ring.
class NewContext {
 public:
  NewContext(const AioContext& image, Child& child) : image_(image), child_(child) {}

  Result<void> make();
  /// The kernel's counters cannot be set, only counted up, by requests that are answered at once; `unread` of the
  /// answers are not taken, so that the kernel knows of them.
  Result<void> count_up(uint64_t answers, uint32_t unread, int readable);
  Result<void> move(const store::MemoryMap& map, ByteSpan content);

 private:
  Result<void> set_up(uint32_t requests, AioRing& ring);
  Result<void> submit(uint64_t list, uint64_t count);
  uint64_t size() const { return image_.content_size; }

  const AioContext& image_;
  Child& child_;
  uint64_t address_ = 0;
};

Result<void> NewContext::set_up(uint32_t requests, AioRing& ring) {
  std::byte* const place = child_.area().allocate(sizeof address_);
  if (place == nullptr) return fail(Code::kNoRoom, aio_subject(image_), "its description is too large to rebuild");
  SyscallBatch batch;
  batch.add("make an AIO context", SYS_io_setup, requests, reinterpret_cast<uint64_t>(place));
  auto made = child_.run(batch);
  if (!made && batch.calls()[0].result == -EAGAIN)
    return Error(Code::kNoRoom, aio_subject(image_), "there are too many AIO requests on this host")
        .with_hint("the setting fs.aio-max-nr allows more (sysctl)");
  CKPT_TRY(std::move(made));
  std::memcpy(&address_, place, sizeof address_);
  return proc::read_memory(child_.pid(), proc::RemoteAddress(address_),
                           {reinterpret_cast<std::byte*>(&ring), sizeof ring});
}

/// The kernel makes room for as many events as twice the requests, or eight for each processor, and fills the pages.
Result<void> NewContext::make() {
  AioRing ring;
  CKPT_TRY(set_up(image_.requests, ring));
  if (ring.events == image_.events) return {};
  SyscallBatch batch;
  batch.add("end an AIO context", SYS_io_destroy, address_);
  CKPT_TRY(child_.run(batch));
  const uint32_t fewest = image_.events / 2 - 1;
  CKPT_TRY(set_up(fewest, ring));
  if (ring.events == image_.events) return {};
  return fail(Code::kUnsupported, aio_subject(image_),
              fmt::format("is made for {} events by this kernel, which were {}: it has more processors, or fewer",
                          ring.events, image_.events));
}

Result<void> NewContext::submit(uint64_t list, uint64_t count) {
  while (count != 0) {
    SyscallBatch batch;
    batch.add("count an AIO context up", SYS_io_submit, address_, count, list);
    CKPT_TRY(child_.run(batch));
    const int64_t taken = batch.calls()[0].result;
    if (taken <= 0) return fail(Code::kUnsupported, aio_subject(image_), "its counters cannot be raised");
    count -= std::min(count, static_cast<uint64_t>(taken));
  }
  return {};
}

Result<void> NewContext::count_up(uint64_t answers, uint32_t unread, int readable) {
  constexpr uint64_t kMost = 256;
  const uint64_t at_once = std::clamp<uint64_t>(image_.events / 2, 1, kMost);
  RestorerArea& area = child_.area();
  iocb request{};
  request.aio_lio_opcode = IOCB_CMD_PREAD, request.aio_fildes = static_cast<uint32_t>(readable);
  request.aio_buf = area.put(uint64_t{0}), request.aio_nbytes = 1;
  const std::vector<uint64_t> requests(at_once, area.put(request));
  const uint64_t list = area.put_bytes(std::as_bytes(std::span(requests)));
  const std::byte* const taken = area.allocate(at_once * sizeof(io_event));
  if (area.overflowed()) return fail(Code::kNoRoom, aio_subject(image_), "its description is too large to rebuild");
  for (uint64_t left = answers; left != 0;) {
    const uint64_t count = std::min(left > unread ? left - unread : left, at_once);
    CKPT_TRY(submit(list, count));
    if (left > unread) {
      SyscallBatch batch;
      batch.add("count an AIO context up", SYS_io_getevents, address_, count, count,
                reinterpret_cast<uint64_t>(taken), 0);
      CKPT_TRY(child_.run(batch));
    }
    left -= count;
  }
  return {};
}

Result<void> NewContext::move(const store::MemoryMap& map, ByteSpan content) {
  SyscallBatch batch;
  batch.add("move the ring of an AIO context", SYS_mremap, address_, size(), size(), MREMAP_MAYMOVE | MREMAP_FIXED,
            map.start);
  if (has_flag(map, "dc")) batch.add("set a property of memory", SYS_madvise, map.start, size(), MADV_DONTFORK);
  CKPT_TRY(child_.run(batch));
  // Its place in the kernel's table comes first, and is its own.
  const ByteSpan rest = content.subspan(sizeof(AioRing::id));
  CKPT_TRY(proc::write_memory(child_.pid(), proc::RemoteAddress(map.start + sizeof(AioRing::id)), rest));
  SyscallBatch last;
  if (map.prot != (PROT_READ | PROT_WRITE))
    last.add("protect the ring of an AIO context", SYS_mprotect, map.start, size(), map.prot);
  return child_.run(last);
}

/// Room for requests is parked with each processor that a context was used on: where all of it is needed, what is left
/// on another one would be missing. The threads get back those that they may use, later.
Result<void> stay_on_processor(Child& child) {
  constexpr uint32_t kMost = 8192;
  std::byte* const place = child.area().allocate(sizeof(uint32_t));
  if (place == nullptr) return fail(Code::kNoRoom, "AIO contexts", "their description is too large to rebuild");
  SyscallBatch ask;
  ask.add("ask for the processor", SYS_getcpu, reinterpret_cast<uint64_t>(place), 0, 0);
  CKPT_TRY(child.run(ask));
  uint32_t processor = 0;
  std::memcpy(&processor, place, sizeof processor);
  if (processor >= kMost) return {};
  std::array<uint64_t, kMost / 64> mask{};
  mask[processor / 64] = uint64_t{1} << processor % 64;
  SyscallBatch stay;
  stay.try_add("stay on a processor", SYS_sched_setaffinity, 0, sizeof mask, child.area().put(mask));
  return child.run(stay);
}

Result<void> make_one(const store::ImageReader& image, const AioContext& context, const store::MemoryMap& map,
                      int readable, Child& child) {
  CKPT_TRY_ASSIGN(const std::vector<std::byte> content, image.read_pipe(context.content_offset, context.content_size));
  AioRing ring;
  std::memcpy(&ring, content.data(), std::min(sizeof ring, content.size()));
  if (!ring.is_sound() || ring.events != context.events)
    return fail(Code::kCorrupt, aio_subject(context), "the image contradicts itself: its counters do not fit its ring");
  NewContext made(context, child);
  CKPT_TRY(made.make());
  const bool is_wrapped = ring.tail < ring.unread();
  CKPT_TRY(made.count_up(uint64_t{ring.tail} + (is_wrapped ? ring.events : 0), ring.unread(), readable));
  return made.move(map, content);
}

}  // namespace

Result<int> keep_empty_file(Inherited& inherited) {
  UniqueFd fd(::memfd_create("", MFD_CLOEXEC));
  if (!fd) return sys_error("a file without bytes", "cannot be made");
  return inherited.keep(std::move(fd), "a file without bytes");
}

Result<void> make_aio_contexts(const store::ImageReader& image, int process, int readable, Child& child) {
  const store::TreeImage& tree = image.manifest().tree;
  auto is_ours = [&](const AioContext& context) { return context.process == process; };
  if (std::none_of(tree.aio_contexts.begin(), tree.aio_contexts.end(), is_ours)) return {};
  CKPT_TRY(stay_on_processor(child));
  for (const AioContext& context : tree.aio_contexts) {
    if (!is_ours(context)) continue;
    const auto& maps = tree.processes[static_cast<size_t>(process)].maps;
    const auto map = std::find_if(maps.begin(), maps.end(), [&](const auto& m) { return m.start == context.start; });
    if (map == maps.end())
      return fail(Code::kCorrupt, aio_subject(context), "the image contradicts itself: it has no ring");
    CKPT_TRY(make_one(image, context, *map, readable, child));
  }
  return {};
}

}  // namespace ckpt::restore
