// Security labels, clamps and the autogroup: what is read of them, and what a restore makes of it. Many machines have
// no module that gives labels, and a kernel without clamps.
#include <doctest/doctest.h>
#include <sched.h>

#include "lib/state/attributes/capture.h"
#include "lib/state/labels/capture.h"
#include "lib/state/labels/restore.h"
#include "lib/state/threads/clamps.h"

using namespace ckpt;
using store::SecurityLabel;
using std::string_literals::operator""s;

namespace {

using Labels = std::vector<SecurityLabel>;

store::TreeImage tree_with(const std::vector<Labels>& threads) {
  store::TreeImage tree;
  tree.labels_recorded = true;
  store::ProcessImage& process = tree.processes.emplace_back();
  process.pid = 77;
  for (const Labels& labels : threads) {
    store::Thread& thread = process.threads.emplace_back();
    thread.tid = 77 + static_cast<int>(process.threads.size()) - 1;
    thread.labels = labels;
  }
  return tree;
}

/// Empty: it would be restored.
std::string refusal(const std::vector<Labels>& threads, const Labels& own) {
  restore::Reasons reasons;
  restore::check_labels(tree_with(threads), own, reasons);
  auto verdict = reasons.verdict("image");
  if (verdict) return "";
  CHECK(verdict.error().code == Code::kPermission);
  std::string out = verdict.error().text() + "\n" + verdict.error().hint;
  for (const std::string& cause : verdict.error().causes) out += "\n" + cause;
  return out;
}

bool has(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

}  // namespace

TEST_CASE("labels: SELinux ends them with a zero, AppArmor with a newline, and unconfined is none") {
  CHECK(capture::parse_label("system_u:system_r:httpd_t:s0\0"s) == "system_u:system_r:httpd_t:s0");
  CHECK(capture::parse_label("docker-default (enforce)\n") == "docker-default (enforce)");
  CHECK(capture::parse_label("unconfined\n").empty());
  CHECK(capture::parse_label("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0"s) ==
        "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023");
  CHECK(capture::parse_label("").empty());
  CHECK(capture::parse_label("_\n") == "_");
}

TEST_CASE("labels: those of ckpt itself can be read, or there are none") {
  CHECK(capture::read_labels(::getpid(), ::getpid()));
}

TEST_CASE("labels: the same are restored, also none") {
  const Labels httpd = {{"current", "system_u:system_r:httpd_t:s0"}};
  CHECK(refusal({httpd, httpd}, httpd).empty());
  CHECK(refusal({{}, {}}, {}).empty());
}

TEST_CASE("labels: another one is refused once, with the command that starts ckpt under it") {
  const Labels httpd = {{"current", "system_u:system_r:httpd_t:s0"}};
  const std::string selinux = refusal({httpd, httpd}, {{"current", "unconfined_u:unconfined_r:unconfined_t:s0"}});
  CHECK(has(selinux, "process 77: its security label (attr/current) was \"system_u:system_r:httpd_t:s0\""));
  CHECK(has(selinux, "runcon 'system_u:system_r:httpd_t:s0' ckpt restore"));
  CHECK(has(selinux, "ckpt restore --drop-labels"));
  CHECK(selinux.find("httpd_t") == selinux.rfind("httpd_t", selinux.find("runcon") - 1));
  const std::string apparmor = refusal({{{"current", "docker-default (enforce)"}}}, {});
  CHECK(has(apparmor, "would be ckpt's: none"));
  CHECK(has(apparmor, "aa-exec -p 'docker-default' --"));
}

TEST_CASE("labels: an image that did not record them is no image of processes that had none") {
  const Labels own = {{"current", "unconfined_u:unconfined_r:unconfined_t:s0"}};
  store::TreeImage tree = tree_with({{}});
  CHECK(restore::records_labels(tree));
  tree.labels_recorded = false;
  CHECK(!restore::records_labels(tree));
  restore::Reasons none;
  restore::check_labels(tree, own, none);
  CHECK(none.size() == 0);
  tree.processes[0].threads[0].labels = {{"current", "system_u:system_r:httpd_t:s0"}};  // of a ckpt in between
  restore::Reasons some;
  restore::check_labels(tree, own, some);
  CHECK(some.size() == 1);
}

TEST_CASE("labels: one that ckpt has and a process had not, of another thread or of what it makes, is refused, too") {
  CHECK(has(refusal({{}}, {{"current", "ckpt (enforce)"}}), "was none, and would be ckpt's: \"ckpt (enforce)\""));
  CHECK(has(refusal({{}, {{"current", "hat (enforce)"}}}, {}), "\"hat (enforce)\""));
  CHECK(has(refusal({{{"fscreate", "system_u:object_r:etc_t:s0"}}}, {}), "attr/fscreate"));
}

TEST_CASE("clamps: what a thread chose, told from what is usual under its policy") {
  const capture::UsualClamps usual{1024};
  auto chosen = [](uint32_t policy, uint32_t min, uint32_t max, std::optional<capture::UsualClamps> of) {
    capture::SchedulingAttributes attributes{};
    attributes.policy = policy, attributes.util_min = min, attributes.util_max = max;
    return capture::chosen_clamps(attributes, of);
  };
  CHECK(chosen(SCHED_OTHER, 0, 1024, usual) == capture::Clamps{-1, -1});
  CHECK(chosen(SCHED_OTHER, 100, 700, usual) == capture::Clamps{100, 700});
  CHECK(chosen(SCHED_OTHER, 0, 0, usual) == capture::Clamps{-1, 0});
  CHECK(chosen(SCHED_FIFO, 1024, 1024, usual) == capture::Clamps{-1, -1});
  CHECK(chosen(SCHED_RR, 0, 1024, usual) == capture::Clamps{0, -1});
  CHECK(chosen(SCHED_FIFO, 512, 1024, capture::UsualClamps{512}) == capture::Clamps{-1, -1});
  CHECK(chosen(SCHED_OTHER, 0, 0, std::nullopt) == capture::Clamps{-1, -1});  // a kernel without them tells zeros
  CHECK(chosen(SCHED_OTHER, 5000, 1024, usual) == capture::Clamps{-1, -1});
}

TEST_CASE("autogroup: its nice value is the last word of the line") {
  CHECK(capture::parse_autogroup_nice("/autogroup-426837 nice 0") == 0);
  CHECK(capture::parse_autogroup_nice("/autogroup-12 nice -5") == -5);
  CHECK(capture::parse_autogroup_nice("/autogroup-12 nice 19\n") == 19);
  CHECK(capture::parse_autogroup_nice("/autogroup-12 nice 4000") == 19);
  CHECK(capture::parse_autogroup_nice("") == 0);
  CHECK(capture::parse_autogroup_nice("/autogroup-12 nice ") == 0);
}

TEST_CASE("futexes: what the kernel may have chosen by itself is left to it") {
  CHECK(capture::chosen_futex_slots(-22, 1, 2) == -1);  // a kernel that does not know the question
  CHECK(capture::chosen_futex_slots(0, 1, 2) == -1);
  CHECK(capture::chosen_futex_slots(0, 8, 2) == 0);
  CHECK(capture::chosen_futex_slots(16, 8, 2) == -1);
  CHECK(capture::chosen_futex_slots(64, 8, 2) == 64);
  CHECK(capture::chosen_futex_slots(64, 8, 64) == -1);
  CHECK(capture::chosen_futex_slots(256, 8, 48) == -1);
  CHECK(capture::chosen_futex_slots(512, 8, 48) == 512);
  CHECK(capture::chosen_futex_slots(int64_t{1} << 40, 8, 2) == -1);
}
