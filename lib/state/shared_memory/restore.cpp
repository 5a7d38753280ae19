#include "lib/state/shared_memory/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"
#include "lib/base/worker_pool.h"
#include "lib/state/files/extended_attributes.h"
#include "lib/state/files/write_hint.h"
#include "lib/state/huge_pages/restore.h"

namespace ckpt::restore {

namespace {

using store::SharedMemory;

/// With this seal a mapping that may be written keeps that right, and no new one gets it.
constexpr uint32_t kAfterMapping = F_SEAL_SEAL | 0x0010;  // F_SEAL_FUTURE_WRITE
constexpr unsigned kNoExecSeal = 0x0008, kExec = 0x0010;   // MFD_NOEXEC_SEAL, MFD_EXEC (6.3)

std::string subject_of(const SharedMemory& memory) {
  return memory.name.empty() ? fmt::format("shared memory {}", memory.inode) : "memfd " + memory.name;
}

/// A memfd would show under another name: this is the object that mmap makes, opened through the mapping.
Result<UniqueFd> make_anonymous(const SharedMemory& memory) {
  const uint64_t size = (memory.size + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
  const int huge = memory.huge_page != 0 ? MAP_HUGETLB | huge_page_flag(memory.huge_page) : 0;
  void* place =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | huge, -1, 0);
  if (place == MAP_FAILED) return sys_error(subject_of(memory), fmt::format("cannot make {} bytes", size));
  Mapping mapping(place, size);
  auto start = reinterpret_cast<uint64_t>(place);
  return io::open_file(fmt::format("/proc/self/map_files/{:x}-{:x}", start, start + size), O_RDWR);
}

Result<UniqueFd> make_memfd(const SharedMemory& memory) {
  constexpr uint32_t kSealExec = 0x0020;
  const unsigned kind = (memory.seals & kSealExec) != 0 ? kNoExecSeal : kExec;
  const unsigned huge =
      memory.huge_page != 0 ? MFD_HUGETLB | static_cast<unsigned>(huge_page_flag(memory.huge_page)) : 0;
  int fd = ::memfd_create(memory.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | kind | huge);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(memory.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | huge);
  if (fd < 0) return sys_error(subject_of(memory), "cannot be made");
  UniqueFd out(fd);
  if (::ftruncate(fd, static_cast<off_t>(memory.size)) != 0)
    return sys_error(subject_of(memory), "cannot be given its size");
  if ((memory.seals & kSealExec) == 0 && ::fchmod(fd, memory.mode) != 0)
    return sys_error(subject_of(memory), "cannot be given its mode");
  if (::fchown(fd, memory.uid, memory.gid) != 0) return sys_error(subject_of(memory), "cannot be given its owner");
  CKPT_TRY(state::set_write_hint(fd, memory.write_hint, subject_of(memory)));
  CKPT_TRY(state::set_extended_attributes(fd, memory.attributes, subject_of(memory)));
  return out;
}

Result<SharedMemoryFds> make_one(const SharedMemory& memory, Inherited& inherited) {
  if (memory.kind == SharedMemory::Kind::kSystemV) return SharedMemoryFds();  // IpcObjects has it
  CKPT_TRY_ASSIGN(UniqueFd fd, memory.kind == SharedMemory::Kind::kMemfd ? make_memfd(memory) : make_anonymous(memory));
  CKPT_TRY_ASSIGN(UniqueFd reader, io::open_file(fmt::format("/proc/self/fd/{}", fd.get()), O_RDONLY));
  SharedMemoryFds out;
  CKPT_TRY_ASSIGN(out.writable, inherited.keep(std::move(fd), subject_of(memory)));
  CKPT_TRY_ASSIGN(out.read_only, inherited.keep(std::move(reader), subject_of(memory)));
  return out;
}

Result<void> add_seals(const store::TreeImage& tree, const std::vector<SharedMemoryFds>& fds, uint32_t which) {
  for (size_t i = 0; i < fds.size(); ++i) {
    const SharedMemory& memory = tree.shared_memory[i];
    if (memory.kind != SharedMemory::Kind::kMemfd || (memory.seals & which) == 0) continue;
    if (::fcntl(fds[i].writable, F_ADD_SEALS, memory.seals & which) != 0)
      return sys_error(subject_of(memory), "cannot be sealed");
  }
  return {};
}

/// Where pages go, by offset.
class Destination {
 public:
  static Result<Destination> open(int fd, uint64_t size, uint64_t huge_page) {
    Destination out(fd, huge_page);
    if (huge_page == 0) return out;
    void* place = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (place == MAP_FAILED) return sys_error("huge pages", "cannot be mapped");
    out.memory_ = Mapping(place, size);
    return out;
  }

  /// Files of huge pages know no write; what they have no room for would end whoever writes to their memory.
  Result<void> write(ByteSpan bytes, uint64_t at) const {
    if (!memory_) return io::pwrite_all(fd_, bytes, at, "shared memory");
    const uint64_t first = at / huge_page_ * huge_page_, last = (at + bytes.size() - 1) / huge_page_ * huge_page_;
    if (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                    static_cast<off_t>(last + huge_page_ - first)) != 0)
      return sys_error("huge pages", "there are not enough").with_code(Code::kNoRoom);
    std::memcpy(memory_.data() + at, bytes.data(), bytes.size());
    return {};
  }

 private:
  Destination(int fd, uint64_t huge_page) : fd_(fd), huge_page_(huge_page) {}
  int fd_;
  uint64_t huge_page_;
  Mapping memory_;  ///< of huge pages
};

/// The packed pages of a block to their places; neighbours in one write.
Result<void> write_block(const store::ImageReader& image, size_t index, uint64_t size, const Destination& to) {
  thread_local std::vector<std::byte> buffer(store::kBlockSize);
  const auto& block = image.blocks()[index];
  CKPT_TRY_ASSIGN(size_t got, image.read_block(index, buffer));
  const uint64_t base = block.address & (store::space_base(1) - 1);
  ByteSpan data(buffer.data(), got);
  for (unsigned page = 0; page < store::kBlockPages;) {
    unsigned rest = static_cast<unsigned>(block.data_mask) >> page;
    if ((rest & 1) == 0) {
      ++page;
      continue;
    }
    const unsigned run = static_cast<unsigned>(std::countr_one(rest));
    const uint64_t at = base + page * store::kPageSize;
    ByteSpan part = data.first(run * store::kPageSize);
    data = data.subspan(part.size());
    page += run;
    if (at >= size) continue;
    CKPT_TRY(to.write(part.first(std::min<uint64_t>(part.size(), size - at)), at));
  }
  return {};
}

}  // namespace

std::vector<SharedMemoryFds> make_shared_memory(const store::TreeImage& tree, Inherited& inherited, Reasons& reasons) {
  std::vector<SharedMemoryFds> out;
  for (const SharedMemory& memory : tree.shared_memory) {
    auto made = make_one(memory, inherited);
    if (!made) reasons.add(made.error());
    out.push_back(made ? *made : SharedMemoryFds());
  }
  return out;
}

Result<void> seal_before_mapping(const store::TreeImage& tree, const std::vector<SharedMemoryFds>& fds) {
  return add_seals(tree, fds, ~kAfterMapping);
}

Result<void> seal_after_mapping(const store::TreeImage& tree, const std::vector<SharedMemoryFds>& fds) {
  return add_seals(tree, fds, kAfterMapping);
}

Result<FillTotals> fill_file(const store::ImageReader& image, int space, uint64_t size, int fd, ProgressSink& progress,
                             const Cancel& cancel, uint64_t huge_page) {
  auto [first, last] = image.blocks_of(space);
  if (first == last || size == 0) return FillTotals();
  CKPT_TRY_ASSIGN(const Destination to, Destination::open(fd, size, huge_page));
  std::atomic<uint64_t> pages{0};
  WorkerPool pool;
  for (size_t i = first; i < last; ++i) {
    const auto count = static_cast<uint64_t>(std::popcount(image.blocks()[i].data_mask));
    if (count == 0) continue;
    bool going_on = pool.submit([&, i, count]() -> Result<void> {
      CKPT_TRY(cancel.check());
      CKPT_TRY(write_block(image, i, size, to));
      pages += count;
      progress.advance(count * store::kPageSize);
      return {};
    });
    if (!going_on) break;
  }
  CKPT_TRY(pool.finish());
  return FillTotals{pages, pages * store::kPageSize};
}

}  // namespace ckpt::restore
