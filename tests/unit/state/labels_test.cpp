// Security labels, clamps and the autogroup: what is read of them, and what a restore makes of it. Many machines have
// no module that gives labels, and a kernel without clamps.
#include <doctest/doctest.h>
#include <sched.h>

#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "lib/state/attributes/capture.h"
#include "lib/state/labels/capture.h"
#include "lib/state/labels/change.h"
#include "lib/state/labels/restore.h"
#include "lib/state/threads/clamps.h"
#include "tests/support/free_pid.h"
#include "tests/support/skip.h"
#include "tests/support/two_threads.h"

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

Result<void> grant(const restore::LabelChange&) { return {}; }
Result<void> deny(const restore::LabelChange&) { return Error(Code::kPermission, "", "Operation not permitted"); }

/// Empty: it would be restored.
std::string refusal(const std::vector<Labels>& threads, const Labels& own, const std::string& profile = "",
                    Result<void> (*kernel)(const restore::LabelChange&) = deny) {
  restore::Reasons reasons;
  restore::check_labels(tree_with(threads), {own, profile, kernel}, reasons);
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
  CHECK(has(selinux, "for it is not changed: Operation not permitted"));
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
  CHECK(restore::check_labels(tree, {own, "", grant}, none).empty());
  CHECK(none.size() == 0);
  tree.processes[0].threads[0].labels = {{"current", "system_u:system_r:httpd_t:s0"}};  // of a ckpt in between
  restore::Reasons some;
  restore::check_labels(tree, {own, "", deny}, some);
  CHECK(some.size() == 1);
}

TEST_CASE("labels: one that ckpt has and a process had not, of another thread or of what it makes, is refused, too") {
  CHECK(has(refusal({{}}, {{"current", "ckpt (enforce)"}}), "was none, and would be ckpt's: \"ckpt (enforce)\""));
  CHECK(has(refusal({{}, {{"current", "hat (enforce)"}}}, {}), "\"hat (enforce)\""));
  CHECK(has(refusal({{{"fscreate", "system_u:object_r:etc_t:s0"}}}, {}), "attr/fscreate"));
}

TEST_CASE("labels: what is written so that a thread has the one that it had") {
  const Labels httpd = {{"current", "system_u:system_r:httpd_t:s0"}};
  const Labels docker = {{"current", "docker-default (enforce)"}, {"apparmor/current", "docker-default (enforce)"}};
  const auto context = restore::change_between({{"current", "unconfined_u:unconfined_r:unconfined_t:s0"}}, httpd);
  REQUIRE(context);
  CHECK(*context == restore::LabelChange{"current", httpd[0].value, httpd[0].value, true});
  const auto profile = restore::change_between({}, docker);
  REQUIRE(profile);
  CHECK(*profile == restore::LabelChange{"apparmor/current", "changeprofile docker-default",
                                         "docker-default (enforce)", false});
  const auto older = restore::change_between({}, {docker[0]});
  CHECK((older && older->file == "current" && older->text == "changeprofile docker-default"));
  const auto none = restore::change_between(docker, {});
  CHECK((none && none->text == "changeprofile unconfined" && none->label.empty()));
  const auto stacked = restore::change_between({}, {{"apparmor/current", "a//&:lxd:b (mixed)"}});
  CHECK((stacked && stacked->text == "changeprofile a//&:lxd:b"));
  CHECK(!restore::change_between(docker, docker));
  CHECK(!restore::change_between({}, {{"smack/current", "_"}, {"current", "_"}}));
  CHECK(!restore::change_between({}, {{"current", "docker-default (enforce)"}, {"exec", "other (enforce)"}}));
  CHECK(!restore::change_between({}, {httpd[0], {"apparmor/current", "docker-default (enforce)"}}));  // two modules
}

TEST_CASE("labels: a profile that was asked for takes the place of those that there were") {
  const Labels docker = {{"apparmor/current", "docker-default (enforce)"}};
  const auto other = restore::change_to("apparmor:web", docker);
  REQUIRE(other);
  CHECK(*other == restore::LabelChange{"apparmor/current", "changeprofile web", "web", false});
  CHECK(restore::gives(*other, {{"apparmor/current", "web (complain)"}}));
  CHECK(!restore::gives(*other, docker));
  CHECK(!restore::gives(*other, {}));
  CHECK(!restore::change_to("apparmor:web", {}));
  const auto selinux = restore::change_to("selinux:system_u:system_r:container_t:s0:c1,c2", {{"current", "a:b:c:s0"}});
  CHECK((selinux && selinux->text == "system_u:system_r:container_t:s0:c1,c2" && selinux->before_threads));
  CHECK(restore::check_profile("apparmor:web"));
  for (const char* text : {"", "web", "apparmor:", "selinux:", "smack:_", "apparmor:web\nchangeprofile unconfined"})
    CHECK_MESSAGE(!restore::check_profile(text), text);
}

TEST_CASE("labels: what the kernel gives is made, and what it gives otherwise is not taken for it") {
  const Labels docker = {{"current", "docker-default (enforce)"}, {"apparmor/current", "docker-default (enforce)"}};
  restore::Reasons reasons;
  const auto changes = restore::check_labels(tree_with({docker, {}, docker}), {{}, "", grant}, reasons);
  CHECK(reasons.size() == 0);
  CHECK((changes.size() == 2 && changes.contains(77) && changes.contains(79)));
  CHECK(!restore::gives(changes.at(77), {{"apparmor/current", "docker-default (complain)"}}));
  CHECK(restore::gives(changes.at(77), docker));
  restore::Reasons others;
  const auto forced = restore::check_labels(tree_with({docker, {}}), {{}, "apparmor:web", grant}, others);
  CHECK((others.size() == 0 && forced.size() == 1 && forced.at(77).text == "changeprofile web"));
  CHECK(has(refusal({docker}, {}, "apparmor:web"), "does not get the security label apparmor:web: Operation not"));
  CHECK(refusal({docker}, {{"apparmor/current", "web (enforce)"}}, "apparmor:web").empty());  // ckpt has it
  CHECK(has(refusal({{docker[1], {"exec", "x (enforce)"}}}, {}, "apparmor:web", grant), "attr/exec"));
}

TEST_CASE("labels: SELinux's are a process's, whose threads are made with it") {
  const Labels own = {{"current", "u:r:ckpt_t:s0"}}, one = {{"current", "u:r:one_t:s0"}};
  const Labels two = {{"current", "u:r:two_t:s0"}};
  CHECK(refusal({one, one}, own, "", grant).empty());
  CHECK(has(refusal({one, two}, own, "", grant), "its threads had different security labels"));
  CHECK(has(refusal({own, two}, own, "", grant), "its threads had different security labels"));
}

TEST_CASE("labels: what no module gives is refused by the kernel, and nothing of ckpt is changed by the attempt") {
  const auto before = capture::read_labels(::getpid(), ::getpid());
  const std::string context = "no_such_u:no_such_r:no_such_t:s0";
  auto done = restore::try_change({"current", context, context, true});
  REQUIRE(!done);
  CHECK(done.error().code == Code::kPermission);
  done = restore::try_change({"apparmor/current", "changeprofile no-such-profile", "no-such-profile", false});
  CHECK(!done);
  const auto after = capture::read_labels(::getpid(), ::getpid());
  REQUIRE((before && after));
  CHECK(*before == *after);
}

TEST_CASE("labels: each thread writes to its own file, and where it cannot nothing goes on") {
  constexpr int kSysAdmin = 21, kCheckpointRestore = 40;
  if (!proc::has_capability(kSysAdmin) && !proc::has_capability(kCheckpointRestore))
    return ckpt::test::skip("choosing a pid needs CAP_CHECKPOINT_RESTORE");
  const int pid = free_pid();
  const int tid = free_pid();
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = child_of_two_threads(pid, tid, *area);
  REQUIRE(child);
  store::ProcessImage image = tree_with({{}, {}}).processes[0];
  image.pid = image.threads[0].tid = pid, image.threads[1].tid = tid;
  // No module is needed for a thread's name.
  const restore::LabelChanges names = {{pid, {"../comm", "first", "", false}}, {tid, {"../comm", "second", "", false}}};
  auto name_of = [&](int thread) {
    return proc::read_small(pid, "task/" + std::to_string(thread) + "/comm").value_or("");
  };
  REQUIRE(restore::change_labels(image, names, true, *child));
  CHECK(name_of(tid) != "second");  // it is not the time for them
  REQUIRE(restore::change_labels(image, names, false, *child));
  CHECK(name_of(pid) == "first");
  CHECK(name_of(tid) == "second");
  REQUIRE(restore::change_labels(image, {{pid, {"../comm", "leader", "", true}}, {tid, {"../comm", "no", "", true}}},
                                 true, *child));
  CHECK(name_of(pid) == "leader");
  CHECK(name_of(tid) == "second");  // threads are made with it
  for (const restore::LabelChange& change : {restore::LabelChange{"no-such-file", "x", "x", false},
                                             restore::LabelChange{"../comm", "x", "x (enforce)", false}}) {
    auto done = restore::change_labels(image, {{tid, change}}, false, *child);
    REQUIRE(!done);
    CHECK(done.error().code == Code::kPermission);
    CHECK(done.error().hint.find("--drop-labels") != std::string::npos);
  }
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
