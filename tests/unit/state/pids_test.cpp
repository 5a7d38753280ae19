#include "lib/state/namespaces/pids.h"

#include <doctest/doctest.h>

#include <functional>

#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/show.h"

using namespace ckpt;

namespace {

store::ProcessImage process(int pid, int parent, std::vector<int> inner, int index) {
  store::ProcessImage out;
  out.pid = pid, out.parent_pid = parent, out.group = out.session = 10;
  out.threads.resize(1);
  out.threads[0].tid = pid, out.threads[0].inner_tids = inner;
  out.inner_groups = out.inner_sessions = std::vector<int>(inner.size(), 0);
  if (index >= 0) out.namespaces = {index};
  return out;
}

/// 10 outside; 11 and 12 within one, 13 deeper, each the first but 12; 14 entered the outer one from outside.
store::TreeImage nested() {
  store::TreeImage out;
  store::FurtherNamespace one, two;
  one.kind = two.kind = "pid", one.parent = 1;  // found before what it lies in
  out.namespaces.further = {one, two};
  out.processes = {process(10, 1, {}, -1), process(11, 10, {1}, 1), process(12, 11, {2}, 1),
                   process(13, 11, {3, 1}, 0), process(14, 10, {4}, 1)};
  out.processes[2].group = out.processes[2].session = 12;
  out.processes[2].inner_groups = out.processes[2].inner_sessions = {2};
  return out;
}

void expect_corrupt(const std::function<void(store::TreeImage&)>& change) {
  store::TreeImage tree = nested();
  change(tree);
  auto valid = state::validate_further(tree);
  REQUIRE(!valid);
  CHECK(valid.error().code == Code::kCorrupt);
}

size_t reasons_of(const store::TreeImage& tree) {
  restore::Reasons reasons;
  restore::check_pid_namespaces(tree, reasons);
  return reasons.size();
}

}  // namespace

TEST_CASE("pid namespaces: a process is known by the number that the viewer has for it, or by none") {
  const store::TreeImage tree = nested();
  REQUIRE(state::validate_further(tree));
  CHECK(state::pid_namespaces_of(tree, 3) == std::vector<int>{1, 0});
  CHECK(state::number_seen_by(tree, 0, 13) == 13);
  CHECK(state::number_seen_by(tree, 1, 13) == 3);
  CHECK(state::number_seen_by(tree, 3, 13) == 1);
  CHECK(state::number_seen_by(tree, 3, 11) == 0);
  CHECK(state::number_seen_by(tree, 1, 10) == 0);
  CHECK(state::first_in(tree, 0) == 3);
  CHECK(state::numbers_in_words(tree.processes[3].threads[0]) == "13 (3, 1)");
  CHECK(state::show(tree.namespaces) == "further pid (level 2), further pid (level 1)");
}

TEST_CASE("pid namespaces: one of an image that nobody has looked at yet is shown, wherever it says that it lies") {
  store::TreeImage tree = nested();
  for (const int parent : {0, 7}) {
    tree.namespaces.further[0].parent = parent;
    CHECK(state::show(tree.namespaces).find("further pid (level ") == 0);
  }
}

TEST_CASE("pid namespaces: a leader that has ended has the numbers that its members tell") {
  store::TreeImage tree = nested();
  tree.processes[2].session = 77, tree.processes[2].inner_sessions = {7};
  CHECK(state::inner_numbers_of_leader(tree, 77) == std::vector<int>{7});
  CHECK(state::number_seen_by(tree, 1, 77) == 7);
  CHECK(state::number_seen_by(tree, 3, 77) == 0);
  CHECK(state::inner_numbers_of_leader(tree, 10).empty());
}

TEST_CASE("pid namespaces: what no processes can have is refused") {
  expect_corrupt([](auto& tree) { tree.namespaces.further[0].parent = 0; });
  expect_corrupt([](auto& tree) { tree.namespaces.further[0].parent = 7; });
  expect_corrupt([](auto& tree) { tree.namespaces.further[0].parent = -2; });
  expect_corrupt([](auto& tree) { tree.namespaces.further[1].parent = 1000; });
  expect_corrupt([](auto& tree) { tree.namespaces.further[1].parent = 0; });  // a circle
  expect_corrupt([](auto& tree) { tree.namespaces.further.push_back(tree.namespaces.further[1]); });
  expect_corrupt([](auto& tree) { tree.processes[2].threads[0].inner_tids = {1}; });
  expect_corrupt([](auto& tree) { tree.processes[2].threads[0].inner_tids = {0}; });
  expect_corrupt([](auto& tree) { tree.processes[2].threads[0].inner_tids = {2, 5}; });
  expect_corrupt([](auto& tree) { tree.processes[2].inner_groups = {}; });
  expect_corrupt([](auto& tree) { tree.processes[4].threads[0].inner_tids = {2}; });
  expect_corrupt([](auto& tree) { tree.processes[4].parent_pid = 13; });
  expect_corrupt([](auto& tree) { tree.processes[3].parent_pid = 10; });
  expect_corrupt([](auto& tree) { tree.processes[1].zombie = true; });
  expect_corrupt([](auto& tree) { tree.processes[0].inner_groups = {4}; });
  expect_corrupt([](auto& tree) { tree.processes[0].pid_for_children = 2; });
  expect_corrupt([](auto& tree) { tree.processes[2].pid_for_children = 1; });
  expect_corrupt([](auto& tree) { tree.namespaces.mounts.filesystems.push_back({1, "proc", "proc", "rw", {}, 0}); });
  expect_corrupt([](auto& tree) { tree.namespaces.further[0].kind = "time"; });
}

TEST_CASE("pid namespaces: a group or session without a number inside is that of the parent") {
  CHECK(reasons_of(nested()) == 0);
  store::TreeImage group = nested();
  group.processes[4].group = 99;
  CHECK(reasons_of(group) == 1);
  store::TreeImage session = nested();
  session.processes[4].session = 99;
  CHECK(reasons_of(session) == 1);
  store::TreeImage orphan = nested();  // adopted there, of a session from outside that nobody there is born in
  orphan.processes[2].session = 99, orphan.processes[2].inner_sessions = {0};
  CHECK(reasons_of(orphan) == 1);
  orphan.processes[4] = process(14, 10, {}, -1);
  orphan.processes.push_back(process(15, 14, {4}, 1));  // now one is: the orphan is made through it
  orphan.processes[4].session = orphan.processes[5].session = 99;
  CHECK(reasons_of(orphan) == 0);
  store::TreeImage further_in = nested();
  further_in.processes[0].group = 13;
  CHECK(reasons_of(further_in) > 0);
  store::TreeImage user = nested();
  user.namespaces.own = {"user"};
  CHECK(reasons_of(user) == 1);
  store::TreeImage pidfd = nested();
  store::Descriptor descriptor;
  descriptor.fds = {{2, 5, false}}, descriptor.kind = store::DescriptorKind::kPidfd, descriptor.object = 0;
  pidfd.process_handles.resize(1);
  pidfd.process_handles[0].pid = 10;
  pidfd.descriptors = {descriptor};
  CHECK(reasons_of(pidfd) == 1);
  pidfd.process_handles[0].pid = 13;
  CHECK(reasons_of(pidfd) == 0);
}
