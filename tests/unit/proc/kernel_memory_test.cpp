#include "lib/proc/kernel_memory.h"

#include <doctest/doctest.h>
#include <linux/aio_abi.h>
#include <linux/btf.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "lib/proc/aio.h"

using namespace ckpt;
using namespace ckpt::proc;

namespace {

/// struct inner { u32 a, b; }, struct outer { u64 first; struct inner named; union { struct { u32 x; u32 y; }; }; }
std::vector<std::byte> small_description() {
  constexpr char kNames[] = "\0inner\0outer\0a\0first\0named\0y";
  const std::string names(kNames, sizeof kNames);
  auto at = [&](const char* name) { return static_cast<uint32_t>(names.find(std::string("\0", 1) + name) + 1); };
  auto info = [](uint32_t kind, uint32_t count) { return kind << 24 | count; };
  const std::vector<uint32_t> types = {
      0, info(BTF_KIND_INT, 0), 4, 32,                                                                       // 1
      at("inner"), info(BTF_KIND_STRUCT, 2), 8, at("a"), 1, 0, at("y"), 1, 32,                               // 2
      0, info(BTF_KIND_STRUCT, 2), 8, at("a"), 1, 0, at("y"), 1, 32,                                         // 3
      0, info(BTF_KIND_UNION, 1), 8, 0, 3, 0,                                                                // 4
      at("outer"), info(BTF_KIND_STRUCT, 3), 24, at("first"), 1, 0, at("named"), 2, 64, 0, 4, 128,           // 5
  };
  btf_header header{};
  header.magic = BTF_MAGIC, header.version = 1, header.hdr_len = sizeof header;
  header.type_len = static_cast<uint32_t>(types.size() * sizeof(uint32_t)), header.str_off = header.type_len;
  header.str_len = static_cast<uint32_t>(names.size());
  std::vector<std::byte> out(sizeof header + header.type_len + names.size());
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, types.data(), header.type_len);
  std::memcpy(out.data() + sizeof header + header.type_len, names.data(), names.size());
  return out;
}

}  // namespace

TEST_CASE("kernel types: members are found, also in what has no name") {
  auto types = KernelTypes::parse(small_description());
  REQUIRE(types);
  CHECK(types->offset_of("inner", "y").value_or(0) == 4);
  CHECK(types->offset_of("outer", "named").value_or(0) == 8);
  CHECK(types->offset_of("outer", "y").value_or(0) == 20);
  CHECK(types->size_of("outer").value_or(0) == 24);
  CHECK(types->offset_of("outer", "nothing").error().code == Code::kUnsupported);
  CHECK(types->offset_of("other", "y").error().code == Code::kUnsupported);
}

TEST_CASE("kernel types: what is cut short or flipped is refused, or names nothing") {
  const std::vector<std::byte> whole = small_description();
  for (size_t size = 0; size < whole.size(); ++size) {
    auto types = KernelTypes::parse({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    CHECK_FALSE(types);
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> flipped = whole;
    flipped[at] ^= std::byte{0xff};
    if (auto types = KernelTypes::parse(flipped)) (void)types->offset_of("outer", "y");
  }
}

TEST_CASE("AIO contexts of this process: what is in flight") {
  aio_context_t context = 0;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (!KernelMemory::get() || pidfd < 0 || ::syscall(SYS_io_setup, 16, &context) != 0) return;
  auto contexts = [&] { return read_aio_contexts(::getpid(), pidfd).value_or({}); };
  REQUIRE(contexts().size() == 1);
  CHECK(contexts()[0].address == context);
  CHECK(contexts()[0].requests == 16);
  CHECK(contexts()[0].in_flight == 0);
  const int event = ::eventfd(0, 0);
  iocb request{};
  request.aio_lio_opcode = IOCB_CMD_POLL, request.aio_fildes = static_cast<uint32_t>(event), request.aio_buf = POLLIN;
  iocb* list[] = {&request};
  REQUIRE(::syscall(SYS_io_submit, context, 1, list) == 1);
  CHECK(contexts()[0].in_flight == 1);
  CHECK(contexts()[0].polls == 1);
  const uint64_t one = 1;
  REQUIRE(::write(event, &one, sizeof one) == sizeof one);
  io_event answer{};
  REQUIRE(::syscall(SYS_io_getevents, context, 1, 1, &answer, nullptr) == 1);
  CHECK(contexts()[0].in_flight == 0);
  ::syscall(SYS_io_destroy, context);
  CHECK(contexts().empty());
  ::close(event), ::close(pidfd);
}
