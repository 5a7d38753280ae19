#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "lib/engine/rehearse_compare.h"
#include "lib/engine/rehearse_image.h"
#include "lib/engine/rehearse_pages.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::engine;

namespace {

store::TreeImage small_tree() {
  store::TreeImage tree;
  store::ProcessImage& process = tree.processes.emplace_back();
  process.pid = 12, process.session = 12, process.group = 12, process.exe = 1;
  store::Thread& thread = process.threads.emplace_back();
  thread.tid = 12, thread.comm = "sh";
  store::MemoryMap map;
  map.start = 0x10000, map.end = 0x12000, map.prot = 3;
  process.maps = {map};
  tree.files.resize(2);
  tree.files[0].path = "/b", tree.files[1].path = "/a";
  tree.files[0].mode = tree.files[1].mode = 0100644;
  store::Descriptor descriptor;
  descriptor.fds = {{0, 3, false}};
  descriptor.file = 0;
  tree.descriptors = {descriptor};
  return tree;
}

bool names(const std::vector<std::string>& lines, const std::string& words) {
  for (const std::string& line : lines) {
    if (line.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("rehearsal: each difference between two descriptions is named") {
  CHECK(compare_trees(small_tree(), small_tree(), {}).empty());
  using Change = std::function<void(store::TreeImage&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"process 12: umask: 18 in the image, 2 after", [](auto& t) { t.processes[0].umask = 2; }},
      {"process 12: thread 12: signal_mask: 0x0 in the image, 0x8 after",
       [](auto& t) { t.processes[0].threads[0].signal_mask = 8; }},
      {"process 12: thread 13: not in the image",
       [](auto& t) {
         t.processes[0].threads.push_back(t.processes[0].threads[0]), t.processes[0].threads[1].tid = 13;
       }},
      {"process 12: mapping 10000: prot: rw- in the image, r-- after",
       [](auto& t) { t.processes[0].maps[0].prot = 1; }},
      {"process 12: mapping 10000: not there after the restore", [](auto& t) { t.processes[0].maps.clear(); }},
      {"descriptor 3 of process number 0: not there after the restore", [](auto& t) { t.descriptors.clear(); }},
      {"descriptor 3 of process number 0: offset: 0 in the image, 7 after",
       [](auto& t) { t.descriptors[0].offset = 7; }},
      {"file /a: inode: 0 in the image, 9 after", [](auto& t) { t.files[1].inode = 9; }},
  };
  for (const auto& [words, change] : changes) {
    CAPTURE(words);
    store::TreeImage made = small_tree();
    change(made);
    const auto lines = compare_trees(small_tree(), made, {});
    CHECK(lines.size() == 1);
    CHECK(names(lines, words));
  }
}

TEST_CASE("rehearsal: what cannot be the same is passed over") {
  store::TreeImage made = small_tree();
  std::swap(made.files[0], made.files[1]);
  made.processes[0].exe = 0, made.descriptors[0].file = 1;
  made.processes[0].space = 7, made.processes[0].parent_pid = 99, made.processes[0].threads[0].xstate_offset = 64;
  store::MemoryMap second = made.processes[0].maps[0];
  made.processes[0].maps[0].end = second.start = 0x11000;
  made.processes[0].maps.push_back(second);
  CHECK(compare_trees(small_tree(), made, {}).empty());
}

TEST_CASE("rehearsal: every page is compared, and one that the image does not have must be zero") {
  test::TempDir temp;
  constexpr size_t kSize = 4 * store::kBlockSize;
  Mapping room(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), kSize);
  const uint64_t start =
      (reinterpret_cast<uint64_t>(room.data()) + store::kBlockSize - 1) / store::kBlockSize * store::kBlockSize;
  auto* memory = reinterpret_cast<std::byte*>(start);
  std::memset(memory, 0x5a, 2 * store::kPageSize);
  auto writer = store::ImageWriter::create(temp.path / "image", {});
  REQUIRE(writer.has_value());
  store::Block block;
  block.address = start, block.data_mask = 3, block.zero_mask = 4, block.data = ByteSpan(memory, 2 * store::kPageSize);
  REQUIRE((*writer)->add_block(block).has_value());
  store::Manifest manifest;
  manifest.tree = small_tree();
  store::ProcessImage& process = manifest.tree.processes[0];
  process.pid = process.threads[0].tid = ::getpid();
  process.space = 0;
  process.maps[0].start = start, process.maps[0].end = start + 2 * store::kBlockSize;
  REQUIRE((*writer)->commit(manifest).has_value());
  auto image = store::ImageReader::open(temp.path / "image");
  REQUIRE(image.has_value());

  Cancel cancel;
  capture::PagePlan populated;
  populated.live = {{start, 0xf, 0}, {start + store::kBlockSize, 1, 0}};
  auto differences = [&] {
    std::vector<std::string> out;
    PageComparison pages(**image, out, cancel);
    CHECK(pages.process(manifest.tree, 0, "it", populated).has_value());
    CHECK(pages.pages() == 5);
    return out;
  };
  CHECK(differences().empty());
  for (const size_t page : {0, 1, 2, 3, 16}) {
    CAPTURE(page);
    memory[page * store::kPageSize + 77] ^= std::byte{1};
    const auto found = differences();
    REQUIRE(found.size() == 1);
    CHECK(found[0].find("1 page with other bytes") != std::string::npos);
    memory[page * store::kPageSize + 77] ^= std::byte{1};
  }
  process.threads[0].rseq_address = start + 64;
  memory[70] ^= std::byte{1};
  CHECK(differences().empty());
}

TEST_CASE("rehearsal: a file that is mapped and leased for writing is refused, since opening it breaks the lease") {
  store::TreeImage tree = small_tree();
  tree.processes[0].maps[0].file = 0;
  CHECK(check_leases(tree));
  tree.descriptors[0].locks = {{store::LockKind::kLease, true}};
  auto refused = check_leases(tree);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(refused.error().subject == "/b");
  tree.descriptors[0].locks[0].write = false;
  CHECK(check_leases(tree));
}
