#include "lib/state/validate.h"

#include <doctest/doctest.h>

#include <functional>

using namespace ckpt;
using namespace ckpt::restore;
using store::DescriptorKind;
using store::MappingKind;
using Blocks = std::vector<store::ImageReader::ResolvedBlock>;

namespace {

store::TreeImage valid_tree() {
  store::TreeImage tree;
  store::ProcessImage& image = tree.processes.emplace_back();
  image.pid = 100;
  store::Thread thread;
  thread.tid = 100;
  thread.xstate_size = 2696;
  image.threads = {thread};
  store::MemoryMap map;
  map.start = 0x10000, map.end = 0x30000, map.prot = 3;
  image.maps = {map};
  image.space = 0;
  tree.files.resize(1);
  image.exe = image.cwd = image.root = 0;
  store::Descriptor descriptor;
  descriptor.fds = {{0, 3, false}};
  descriptor.file = 0;
  tree.descriptors = {descriptor};
  return tree;
}

/// With the content of a file that nobody has open.
store::TreeImage with_content(store::TreeImage tree) {
  store::FileIdentity file;
  file.path = "/var/log/a", file.mode = S_IFREG | 0600, file.inode = 5, file.size = 100, file.space = 1;
  tree.files.push_back(file);
  return tree;
}

/// With a ring, open as descriptor 4 and mapped once.
store::TreeImage with_ring(store::TreeImage tree) {
  store::MemoryMap map;
  map.start = 0x40000, map.end = 0x41000, map.prot = 3, map.kind = MappingKind::kIoUring;
  tree.processes[0].maps.push_back(map);
  store::IoUring ring;
  ring.sq_entries = 8, ring.cq_entries = 16, ring.rings_size = 352, ring.content_size = 864;
  ring.views = {{0, 0x40000}};
  tree.io_urings = {ring};
  store::Descriptor descriptor;
  descriptor.kind = DescriptorKind::kIoUring;
  descriptor.fds = {{0, 4, false}};
  descriptor.object = 0;
  tree.descriptors.push_back(descriptor);
  return tree;
}

/// With an AIO context, whose ring is one page.
store::TreeImage with_aio(store::TreeImage tree) {
  store::MemoryMap map;
  map.start = 0x50000, map.end = 0x51000, map.prot = 3, map.kind = MappingKind::kAio;
  tree.processes[0].maps.push_back(map);
  store::AioContext context;
  context.start = 0x50000, context.events = 127, context.requests = 16, context.content_size = 0x1000;
  tree.aio_contexts = {context};
  return tree;
}

constexpr uint64_t kHuge = 2 << 20;

/// With private huge pages, and shared ones.
store::TreeImage with_huge_pages(store::TreeImage tree) {
  store::MemoryMap own, shared;
  own.start = kHuge, own.end = 3 * kHuge, own.prot = 3, own.kind = MappingKind::kHugePages, own.file_offset = kHuge;
  shared.start = 4 * kHuge, shared.end = 5 * kHuge, shared.prot = 3, shared.kind = MappingKind::kSharedMemory;
  shared.shared_memory = 0, shared.file_offset = kHuge;
  tree.processes[0].maps.push_back(own);
  tree.processes[0].maps.push_back(shared);
  store::SharedMemory memory;
  memory.size = 2 * kHuge, memory.huge_page = kHuge, memory.space = 7;
  tree.shared_memory = {memory};
  return tree;
}

store::ProcessImage& add_child(store::TreeImage& tree) {
  store::ProcessImage child = tree.processes[0];
  child.parent_pid = tree.processes[0].pid;
  child.pid = child.threads[0].tid = 100 + static_cast<int>(tree.processes.size());
  child.space = static_cast<int>(tree.processes.size());
  return tree.processes.emplace_back(child);
}

Result<void> validate_all(const store::TreeImage& tree, const Blocks& blocks) {
  CKPT_TRY(validate(tree));
  return validate_pages(tree, blocks);
}

Blocks sound_blocks() { return {{0x10000, 0x00ff, 0xff00}, {0x20000, 1, 0}}; }

}  // namespace

TEST_CASE("validate: a sound image passes") {
  CHECK(validate_all(valid_tree(), sound_blocks()));
  CHECK(validate_all(with_ring(valid_tree()), sound_blocks()));
  CHECK(validate_all(with_aio(valid_tree()), sound_blocks()));
  CHECK(validate_all(with_huge_pages(valid_tree()), sound_blocks()));
  CHECK(validate_all(with_content(valid_tree()), sound_blocks()));
}

TEST_CASE("validate: every contradiction is found, and is an answer of no") {
  using Change = std::function<void(store::TreeImage&, Blocks&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"a ring of an impossible size", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].sq_entries = 7; }},
      {"a ring with other entries", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].cqe_size = 24; }},
      {"a ring without content", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].content_size = 1; }},
      {"a ring that is too large", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].content_size = 1ull << 40; }},
      {"a ring that tells a file", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].eventfd = 0; }},
      {"a ring that tells nobody", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].eventfd = 9; }},
      {"a ring with unknown flags", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].flags = 2; }},
      {"a ring with two threads", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].poller.resize(2); }},
      {"a ring with its own thread for another's",
       [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].poller = {{0, -1, 0}}; }},
      {"a polled ring that nobody has open",
       [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].poller.resize(1), i.descriptors.pop_back(); }},
      {"a ring with equal credentials",
       [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].personalities.resize(2); }},
      {"a ring with more tags than files", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].file_tags = {1}; }},
      {"the content of a folder", [](auto& i, auto&) { i = with_content(i), i.files[1].mode = S_IFDIR | 0700; }},
      {"a content below another folder", [](auto& i, auto&) { i = with_content(i), i.files[1].path = "/a/../../b"; }},
      {"a content without a name", [](auto& i, auto&) { i = with_content(i), i.files[1].path = "/"; }},
      {"a content of a relative name", [](auto& i, auto&) { i = with_content(i), i.files[1].path = "a/b"; }},
      {"a content that is too large", [](auto& i, auto&) { i = with_content(i), i.files[1].size = 1ull << 60; }},
      {"adjustments of no set", [](auto& i, auto&) { i.ipc.adjustments.resize(1); }},
      {"adjustments of other semaphores",
       [](auto& i, auto&) { i.ipc.sets.resize(1), i.ipc.adjustments.push_back({0, 0, {1}}); }},
      {"adjustments beyond all values",
       [](auto& i, auto&) {
         i.ipc.sets.resize(1), i.ipc.sets[0].semaphores.resize(1);
         i.ipc.adjustments.push_back({0, 0, {40000}});
       }},
      {"a mapping of no ring", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].views.clear(); }},
      {"a view without a mapping", [](auto& i, auto&) { i = with_ring(i), i.io_urings[0].views[0].start = 0x10000; }},
      {"huge pages of no size",
       [](auto& i, auto&) { i = with_huge_pages(i), i.processes[0].maps[1].file_offset = 0; }},
      {"huge pages that are small ones",
       [](auto& i, auto&) { i = with_huge_pages(i), i.processes[0].maps[1].file_offset = 4096; }},
      {"a part of a huge page", [](auto& i, auto&) { i = with_huge_pages(i), i.processes[0].maps[1].start += 4096; }},
      {"shared huge pages from the middle of one",
       [](auto& i, auto&) { i = with_huge_pages(i), i.processes[0].maps[2].file_offset = 4096; }},
      {"shared huge pages beyond their end",
       [](auto& i, auto&) { i = with_huge_pages(i), i.shared_memory[0].size = kHuge; }},
      {"shared huge pages of three bytes",
       [](auto& i, auto&) { i = with_huge_pages(i), i.shared_memory[0].huge_page = 3; }},
      {"shared huge pages, mapped privately",
       [](auto& i, auto&) { i = with_huge_pages(i), i.processes[0].maps[2].kind = MappingKind::kPrivateFile; }},
      {"a ring of no AIO context", [](auto& i, auto&) { i = with_aio(i), i.aio_contexts.clear(); }},
      {"an AIO context without a ring", [](auto& i, auto&) { i = with_aio(i), i.aio_contexts[0].start = 0x10000; }},
      {"two AIO contexts of one ring",
       [](auto& i, auto&) { i = with_aio(i), i.aio_contexts.push_back(i.aio_contexts[0]); }},
      {"an AIO context of no process", [](auto& i, auto&) { i = with_aio(i), i.aio_contexts[0].process = 7; }},
      {"an AIO ring that holds less", [](auto& i, auto&) { i = with_aio(i), i.aio_contexts[0].events = 128; }},
      {"an AIO ring without content", [](auto& i, auto&) { i = with_aio(i), i.aio_contexts[0].content_size = 1; }},
      {"an AIO context for no request", [](auto& i, auto&) { i = with_aio(i), i.aio_contexts[0].requests = 0; }},
      {"a page in an AIO ring", [](auto& i, auto& b) { i = with_aio(i), b = {{0x50000, 1, 0}}; }},
      {"a view of two rings", [](auto& i, auto&) { i = with_ring(i), i.io_urings.push_back(i.io_urings[0]); }},
      {"a page of a ring's memory",
       [](auto& i, auto& b) {
         i = with_ring(i), b.push_back({0x40000, 1, 0});
       }},
      {"no thread", [](auto& i, auto&) { i.processes[0].threads.clear(); }},
      {"another leader", [](auto& i, auto&) { i.processes[0].threads[0].tid = 101; }},
      {"a tid twice", [](auto& i, auto&) { i.processes[0].threads.push_back(i.processes[0].threads[0]); }},
      {"a tid of zero", [](auto& i, auto&) { i.processes[0].pid = i.processes[0].threads[0].tid = 0; }},
      {"no registers", [](auto& i, auto&) { i.processes[0].threads[0].xstate_size = 0; }},
      {"huge registers", [](auto& i, auto&) { i.processes[0].threads[0].xstate_size = 1 << 20; }},
      {"a short siginfo",
       [](auto& i, auto&) {
         i.processes[0].pending = {{10, std::vector<uint8_t>(64)}};
       }},
      {"signal 65",
       [](auto& i, auto&) {
         i.processes[0].threads[0].pending = {{65, std::vector<uint8_t>(128)}};
       }},
      {"an action for signal 0", [](auto& i, auto&) { i.processes[0].actions.resize(1); }},
      {"a timer twice", [](auto& i, auto&) { i.processes[0].posix_timers.resize(2); }},
      {"interval timer 3",
       [](auto& i, auto&) {
         i.processes[0].interval_timers = {{3, 0, 0}};
       }},
      {"limit 99",
       [](auto& i, auto&) {
         i.processes[0].limits = {{99, 0, 0}};
       }},
      {"an unaligned mapping", [](auto& i, auto&) { i.processes[0].maps[0].start = 0x10001; }},
      {"an empty mapping", [](auto& i, auto&) { i.processes[0].maps[0].end = i.processes[0].maps[0].start; }},
      {"a mapping of the kernel's", [](auto& i, auto&) { i.processes[0].maps[0].end = 0x800000000000; }},
      {"overlapping mappings", [](auto& i, auto&) { i.processes[0].maps.push_back(i.processes[0].maps[0]); }},
      {"a file mapping without a file",
       [](auto& i, auto&) { i.processes[0].maps[0].kind = MappingKind::kPrivateFile; }},
      {"a file that is not there", [](auto& i, auto&) { i.processes[0].maps[0].file = 1; }},
      {"protection bits of no meaning", [](auto& i, auto&) { i.processes[0].maps[0].prot = 8; }},
      {"a guard outside",
       [](auto& i, auto&) {
         i.processes[0].maps[0].guards = {{0x30000, 0x31000}};
       }},
      {"a page of no mapping",
       [](auto&, auto& b) {
         b.push_back({0x30000, 1, 0});
       }},
      {"a zero page of no mapping",
       [](auto&, auto& b) {
         b.push_back({0x40000, 0, 1});
       }},
      {"a page in the vdso", [](auto& i, auto&) { i.processes[0].maps[0].kind = MappingKind::kVdso; }},
      {"a descriptor without a number", [](auto& i, auto&) { i.descriptors[0].fds.clear(); }},
      {"a descriptor below zero", [](auto& i, auto&) { i.descriptors[0].fds[0].fd = -1; }},
      {"an enormous descriptor", [](auto& i, auto&) { i.descriptors[0].fds[0].fd = 1 << 30; }},
      {"a descriptor twice", [](auto& i, auto&) { i.descriptors.push_back(i.descriptors[0]); }},
      {"a file descriptor without a file", [](auto& i, auto&) { i.descriptors[0].file = -1; }},
      {"a pipe that is not there", [](auto& i, auto&) { i.descriptors[0].kind = DescriptorKind::kPipe; }},
      {"an epoll set of what is closed",
       [](auto& i, auto&) {
         i.descriptors[0].epoll.entries = {{0, 9, -1, 1, 0}};
       }},
      {"a pipe that holds too much",
       [](auto& i, auto&) {
         i.pipes = {{4096, 0, 8192}};
       }},
      {"no process", [](auto& i, auto&) { i.processes.clear(); }},
      {"a child before its parent", [](auto& i, auto&) { add_child(i).parent_pid = 7; }},
      {"a number that two processes have",
       [](auto& i, auto&) { add_child(i), i.processes[1].threads[0].tid = i.processes[1].pid = 100; }},
      {"two processes in one memory space", [](auto& i, auto&) { add_child(i).space = 0; }},
      {"a root that has ended", [](auto& i, auto&) { i.processes[0].zombie = true; }},
      {"an open file of a zombie",
       [](auto& i, auto&) { add_child(i).zombie = true, i.descriptors[0].fds[0].process = 1; }},
      {"a child that shares with a zombie",
       [](auto& i, auto&) { add_child(i).zombie = true, add_child(i).memory_of = 1; }},
      {"a memory in a process's space",
       [](auto& i, auto&) { i.shared_memory.resize(1), i.shared_memory[0].space = 0; }},
      {"shared memory that is not there",
       [](auto& i, auto&) { i.processes[0].maps[0].kind = MappingKind::kSharedMemory; }},
      {"no executable", [](auto& i, auto&) { i.processes[0].exe = -1; }},
      {"a working folder that is not there", [](auto& i, auto&) { i.processes[0].cwd = 7; }},
  };
  for (const auto& entry : changes) {
    CAPTURE(entry.first);
    store::TreeImage image = valid_tree();
    Blocks blocks = sound_blocks();
    entry.second(image, blocks);
    auto result = validate_all(image, blocks);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == Code::kCorrupt);
  }
}
