#include "lib/state/plan_check.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <functional>

#include "lib/base/io.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::restore;

namespace {

void add_process(store::TreeImage& tree, int pid, int parent, int session, int group) {
  store::ProcessImage& image = tree.processes.emplace_back();
  image.pid = pid, image.parent_pid = parent, image.session = session, image.group = group;
  image.space = static_cast<int>(tree.processes.size()) - 1;
  image.exe = image.cwd = image.root = 0;
  store::Thread& thread = image.threads.emplace_back();
  thread.tid = pid, thread.xstate_size = 2696;
}

/// 100 leads a session; 101 and 102 are its children, 103 is one of 102.
store::TreeImage sound_tree() {
  store::TreeImage tree;
  tree.files.resize(1);
  tree.files[0].path = "/", tree.files[0].mode = S_IFDIR | 0755;
  add_process(tree, 100, 1, 100, 100);
  add_process(tree, 101, 100, 100, 101);
  add_process(tree, 102, 100, 100, 101);
  add_process(tree, 103, 102, 90, 91);
  return tree;
}

}  // namespace

TEST_CASE("plan: what restore can make stands, what it cannot is refused") {
  Reasons none;
  check_plan(sound_tree(), none);
  CHECK(none.verdict("").has_value());
  using Change = std::function<void(store::TreeImage&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"memory of neither parent nor sibling", [](auto& t) { t.processes[3].memory_of = 1; }},
      {"descriptors of neither parent nor sibling", [](auto& t) { t.processes[3].descriptors_of = 1; }},
      {"a group in two sessions", [](auto& t) { t.processes[3].group = 101; }},
      {"a group of another session's leader", [](auto& t) { t.processes[2].group = 101, t.processes[2].session = 90; }},
      {"a session whose number a thread has",
       [](auto& t) {
         t.processes[0].threads.push_back(t.processes[0].threads[0]), t.processes[0].threads[1].tid = 90;
       }},
      {"a polled ring in other mounts",
       [](auto& t) {
         t.io_urings.resize(1), t.io_urings[0].poller.resize(1), t.io_urings[0].process = 1;
         t.namespaces.further.resize(1), t.namespaces.further[0].kind = "mnt", t.processes[1].namespaces = {0};
       }},
      {"a number beyond every limit",
       [](auto& t) {
         t.processes[1].threads.push_back(t.processes[1].threads[0]), t.processes[1].threads[1].tid = 1 << 30;
       }},
  };
  for (const auto& [name, change] : changes) {
    CAPTURE(name);
    store::TreeImage tree = sound_tree();
    change(tree);
    Reasons reasons;
    check_plan(tree, reasons);
    CHECK(reasons.size() >= 1);
  }
}

TEST_CASE(
    "plan: an image that contradicts itself is refused before its target ends, a changed file is a reason to try "
    "again") {
  store::Manifest manifest;
  manifest.tree = sound_tree();
  CHECK(check_before_end(manifest, true).has_value());

  store::Manifest twice = manifest;
  twice.tree.processes[1].space = twice.tree.processes[0].space;
  auto refused = check_before_end(twice, false);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUnsupported);

  test::TempDir folder;
  const std::string path = (folder.path / "data").string();
  REQUIRE(io::write_file(path, "1234").has_value());
  struct stat st{};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  store::FileIdentity file;
  file.path = path, file.size = 5, file.mode = st.st_mode;
  file.device = st.st_dev, file.inode = st.st_ino;
  manifest.tree.files.push_back(file);
  store::Descriptor descriptor;
  descriptor.fds = {{0, 3, false}};
  descriptor.file = 1;
  manifest.tree.descriptors = {descriptor};
  auto changed = check_before_end(manifest, true);
  REQUIRE(!changed);
  CHECK(changed.error().code == Code::kBusy);
  CHECK(check_before_end(manifest, false).has_value());

  manifest.tree.files[1].deleted = true;
  manifest.tree.files[1].path = "/proc/self/gone";
  auto nowhere = check_before_end(manifest, false);
  REQUIRE(!nowhere);
  CHECK(nowhere.error().code == Code::kUnsupported);
}
