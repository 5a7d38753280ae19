#include "lib/state/tree/restorer_area.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/proc/call_table.h"

namespace ckpt::restore {

namespace {

constexpr proc::MachineCode<1> kTrap{0xcc};
constexpr auto kTable = proc::join_code(proc::kTableCode, kTrap);

// The first instruction that needs tile data makes the kernel give the thread a register area with room for it; without
// that, loading the area by ptrace is refused.
constexpr uint64_t kTileOffset = 64;
constexpr proc::MachineCode<11> kTileCode{
    0xc4, 0xe2, 0x78, 0x49, 0x03,  // ldtilecfg [rbx]
    0xc4, 0xe2, 0x7b, 0x49, 0xc0,  // tilezero tmm0
    0xcc,                          // int3
};
static_assert(kTable.size() <= kTileOffset);
constexpr uint64_t kCodeSize = 4096;

/// The lowest address from `start` on where kSize bytes touch nothing of `avoid`.
uint64_t free_place(uint64_t start, const std::vector<Range>& avoid) {
  for (const auto& range : avoid) {
    if (range.second > start && range.first < start + RestorerArea::kSize) start = range.second;
  }
  return start;
}

}  // namespace

Result<RestorerArea> RestorerArea::create(const std::vector<Range>& avoid, bool with_file) {
#ifdef __SANITIZE_THREAD__
  constexpr uint64_t kFirst = 0x7e80'0000'0000;  // lower it keeps its own memory
#else
  constexpr uint64_t kFirst = 1ull << 40;
#endif
  constexpr uint64_t kLast = 0x7fff00000000, kStep = 1ull << 32;
  UniqueFd file;
  if (with_file) {
    file = UniqueFd(::memfd_create("ckpt-restorer", MFD_CLOEXEC));
    if (!file || ::ftruncate(file.get(), kSize) != 0)
      return sys_error("", "cannot make the memory shared with the new process");
  }
  const int kind = MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE | (with_file ? 0 : MAP_ANONYMOUS);
  for (uint64_t start = kFirst; start < kLast; start += kStep) {
    uint64_t place = free_place(start, avoid);
    if (place + kSize > kLast) break;
    void* memory =
        ::mmap(reinterpret_cast<void*>(place), kSize, PROT_READ | PROT_WRITE | PROT_EXEC, kind, file.get(), 0);
    if (memory == MAP_FAILED) {
      if (errno == EEXIST) continue;
      return sys_error("", "cannot make the memory shared with the new process");
    }
    RestorerArea area;
    area.file_ = std::move(file);
    area.memory_ = Mapping(memory, kSize);
    std::memcpy(area.memory_.data(), kTable.data(), kTable.size());
    std::memcpy(area.memory_.data() + kTileOffset, kTileCode.data(), kTileCode.size());
    area.used_ = kCodeSize;
    return area;
  }
  return fail(Code::kNoRoom, "", "the process leaves no room for the memory shared with it");
}

uint64_t RestorerArea::syscall_instruction() const { return table_code() + proc::kTableCallAt; }
uint64_t RestorerArea::tile_code() const { return address() + kTileOffset; }

std::byte* RestorerArea::allocate(uint64_t size) {
  constexpr uint64_t kRoom = kSize - kAsideSize;
  if (size > kRoom || used_ > kRoom - size) {
    overflowed_ = true;
    return nullptr;
  }
  std::byte* out = memory_.data() + used_;
  used_ = std::min(kRoom, (used_ + size + 63) & ~uint64_t{63});
  return out;
}

uint64_t RestorerArea::put_bytes(ByteSpan bytes) {
  std::byte* out = allocate(bytes.size());
  if (out == nullptr) return 0;
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
  return reinterpret_cast<uint64_t>(out);
}

}  // namespace ckpt::restore
