#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "lib/proc/io_uring_kernel.h"
#include "lib/proc/kernel_memory.h"
#include "lib/state/io_uring/capture.h"
#include "lib/state/io_uring/restore.h"

using namespace ckpt;
using state::UringLayout;
using store::IoUring;

namespace {

const restore::DescriptorSource kNone = [](int) { return -1; };

IoUring image_of(uint32_t sq_entries, uint32_t cq_entries, const UringLayout& layout) {
  IoUring out;
  out.sq_entries = sq_entries, out.cq_entries = cq_entries;
  out.rings_size = state::queues_size(out, layout);
  out.content_size = out.rings_size + state::entries_size(out);
  return out;
}

void put(std::vector<std::byte>& content, uint32_t offset, uint32_t value) {
  std::memcpy(content.data() + offset, &value, sizeof value);
}

/// As the kernel and a program leave it that has taken all completions but `unread`.
std::vector<std::byte> content_of(const IoUring& ring, const UringLayout& layout, uint32_t unread) {
  std::vector<std::byte> out(ring.content_size);
  put(out, layout.sq.ring_mask, ring.sq_entries - 1), put(out, layout.sq.ring_entries, ring.sq_entries);
  put(out, layout.cq.ring_mask, ring.cq_entries - 1), put(out, layout.cq.ring_entries, ring.cq_entries);
  put(out, layout.sq.head, ring.submitted), put(out, layout.sq.tail, ring.submitted);
  put(out, layout.cq.tail, ring.completed), put(out, layout.cq.head, ring.completed - unread);
  return out;
}

}  // namespace

TEST_CASE("io_uring: what is in flight, by the counters") {
  proc::UringInfo info;
  info.submitted = 10, info.completed = 7;
  CHECK(capture::in_flight(info, 0).requests == 3);
  CHECK(capture::in_flight(info, 3).requests == 0);
  info.polled = {6, 6};
  CHECK(capture::in_flight(info, 3).requests == 2);
  info.polled.clear(), info.has_overflow = true;
  CHECK(capture::in_flight(info, 3).requests == 1);
  info = {}, info.submitted = 2, info.completed = ~0u - 1;  // wrapped
  CHECK(capture::in_flight(info, 0).requests == 4);
  CHECK(capture::in_flight(info, 0).is_countable);
  info.submitted = 3, info.completed = 5;
  CHECK_FALSE(capture::in_flight(info, 0).is_countable);
}

TEST_CASE("io_uring: a ring is made with the counters and the memory that it had") {
  auto layout = state::uring_layout();
  if (!layout) {
    MESSAGE("skipped: ", layout.error().text());
    return;
  }
  for (uint32_t unread : {0u, 3u, 16u}) {
    IoUring image = image_of(8, 16, *layout);
    image.submitted = 1005, image.completed = 1002;  // three were dropped
    std::vector<std::byte> content = content_of(image, *layout, unread);
    content.back() = std::byte{77};
    auto fd = restore::make_io_uring(image, content, kNone);
    REQUIRE(fd);
    auto info = proc::read_uring_info(::getpid(), fd->get());
    REQUIRE(info);
    CHECK(info->submitted == 1005);
    CHECK(info->completed == 1002);
    IoUring found = image_of(8, 16, *layout);
    REQUIRE(state::find_shape(fd->get(), *layout, found));
    auto memory = state::UringMemory::map(fd->get(), image, *layout);
    REQUIRE(memory);
    std::vector<std::byte> again(content.size());
    const MutableByteSpan whole(again);
    REQUIRE(memory->read(whole.first(image.rings_size), whole.subspan(image.rings_size)));
    CHECK(again == content);
  }
}

TEST_CASE("io_uring: what does not fit is refused") {
  auto layout = state::uring_layout();
  if (!layout) {
    MESSAGE("skipped: ", layout.error().text());
    return;
  }
  IoUring image = image_of(8, 16, *layout);
  image.submitted = image.completed = 100;
  std::vector<std::byte> content = content_of(image, *layout, 17);
  CHECK(restore::make_io_uring(image, content, kNone).error().code == Code::kCorrupt);
  content = content_of(image, *layout, 0);
  put(content, layout->cq.ring_mask, 31);
  CHECK(restore::make_io_uring(image, content, kNone).error().code == Code::kUnsupported);
  content = content_of(image, *layout, 0);
  content.pop_back();
  CHECK(restore::make_io_uring(image, content, kNone).error().code == Code::kUnsupported);
  image.completed = 101;
  CHECK(restore::make_io_uring(image, content_of(image, *layout, 0), kNone).error().code == Code::kCorrupt);
}

TEST_CASE("io_uring: credentials and restrictions come back, as far as the kernel's memory tells") {
  auto layout = state::uring_layout();
  if (!layout || !proc::KernelMemory::get() || ::geteuid() != 0) {
    MESSAGE("skipped: no rings here, or no way to read the kernel's memory");
    return;
  }
  IoUring image = image_of(8, 16, *layout);
  image.personalities = {{2, {0, 0, 0, 0}, {0, 0, 0, 0}, {}, 0},
                         {5, {11, 12, 13, 12}, {21, 22, 23, 22}, {31, 32}, 1}};  // CAP_CHOWN
  image.restrictions = {{1u << 2 | 1u << 12, 1u << 22, 16, 0}};
  image.submitted = image.completed = 77;
  auto fd = restore::make_io_uring(image, content_of(image, *layout, 3), kNone);
  REQUIRE(fd);
  auto found = proc::read_uring_in_kernel(fd->get());
  REQUIRE(found);
  REQUIRE(found->personalities.size() == 2);
  CHECK(found->personalities[0].first == 2);
  CHECK(found->personalities[1].first == 5);
  const proc::UringCredentials& who = found->personalities[1].second;
  CHECK(who.uid == image.personalities[1].uid);
  CHECK(who.gid == image.personalities[1].gid);
  CHECK(who.groups == image.personalities[1].groups);
  CHECK(who.capabilities == 1);
  REQUIRE(found->has_restrictions);
  CHECK(found->restrictions.registrations == image.restrictions[0].registrations);
  CHECK(found->restrictions.requests == image.restrictions[0].requests);
  CHECK(found->restrictions.flags_allowed == 16);
  CHECK((found->flags & IORING_SETUP_R_DISABLED) == 0);
  auto info = proc::read_uring_info(::getpid(), fd->get());
  REQUIRE(info);
  CHECK(info->completed == 77);
}
