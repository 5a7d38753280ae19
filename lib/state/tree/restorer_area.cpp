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

/// The lowest address from `start` on where `size` bytes touch nothing of `avoid`.
uint64_t free_place(uint64_t start, uint64_t size, const std::vector<Range>& avoid) {
  for (const auto& range : avoid) {
    if (range.second > start && range.first < start + size) start = range.second;
  }
  return start;
}

}  // namespace

Result<Mapping> map_clear_of(const std::vector<Range>& avoid, uint64_t size, int protection, int flags, int file,
                             const char* what) {
#ifdef __SANITIZE_THREAD__
  constexpr uint64_t kFirst = 0x7e80'0000'0000;  // lower it keeps its own memory
#else
  constexpr uint64_t kFirst = 1ull << 40;
#endif
  constexpr uint64_t kLast = 0x7fff00000000, kStep = 1ull << 32;
  for (uint64_t start = kFirst; start < kLast; start += kStep) {
    const uint64_t place = free_place(start, size, avoid);
    if (size > kLast || place > kLast - size) break;
    void* memory = ::mmap(reinterpret_cast<void*>(place), size, protection, flags | MAP_FIXED_NOREPLACE, file, 0);
    if (memory != MAP_FAILED) return Mapping(memory, size);
    if (errno != EEXIST) return sys_error("", std::string("cannot make ") + what);
  }
  return fail(Code::kNoRoom, "", std::string("the process leaves no room for ") + what);
}

Result<RestorerArea> RestorerArea::create(const std::vector<Range>& avoid, bool with_file) {
  constexpr const char* kWhat = "the memory shared with the new process";
  RestorerArea area;
  if (with_file) {
    area.file_ = UniqueFd(::memfd_create("ckpt-restorer", MFD_CLOEXEC));
    if (!area.file_ || ::ftruncate(area.file_.get(), kSize) != 0)
      return sys_error("", std::string("cannot make ") + kWhat);
  }
  const int kind = MAP_SHARED | MAP_NORESERVE | (with_file ? 0 : MAP_ANONYMOUS);
  CKPT_TRY_ASSIGN(area.memory_, map_clear_of(avoid, kSize, PROT_READ | PROT_WRITE | PROT_EXEC, kind,
                                             area.file_.get(), kWhat));
  std::memcpy(area.memory_.data(), kTable.data(), kTable.size());
  std::memcpy(area.memory_.data() + kTileOffset, kTileCode.data(), kTileCode.size());
  area.used_ = kCodeSize;
  return area;
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
