// Pushes, collections and crashes between each other's steps.
#include <condition_variable>
#include <thread>

#include "tests/unit/repository/steps.h"

using namespace ckpt;
using namespace ckpt::repository;
using namespace ckpt::repository::test;

namespace {

/// A store with a name that stays, and chunks of one that was removed.
struct Scene : Store {
  fs::path stays = folder.path / "stays", content = folder.path / "content";
  Scene() {
    write(stays / "f", noise(5000, 1));
    write(content / "shared", noise(5000, 1) + noise(40'000, 2));
    write(content / "own", noise(20'000, 3));
    REQUIRE(push(stays, "stays"));
    REQUIRE(push(content, "gone"));
    remove("gone");
  }
  void check_names(bool pushed) {
    CHECK(sound());
    CHECK(content_of(pull("stays")) == content_of(stays));
    if (pushed) CHECK(content_of(pull("new")) == content_of(content));
  }
};

Result<void> push_new(Scene& scene, Repository& repository) {
  CKPT_TRY(push(repository, scene.content, {"new", "test", true}, null_progress()));
  return {};
}

}  // namespace

TEST_CASE("store: gc between any two steps of a push, and again at any later one, takes nothing that it needs") {
  for (size_t first = 0;; first += 1) {
    bool reached = false;
    for (size_t second = first + 1; second < first + 10; second += 4) {
      Scene scene;
      Steps steps;
      auto repository = scene.open(steps);
      steps.act_at = first;
      steps.act = [&] {
        reached = true;
        REQUIRE(scene.collect());
        steps.act_at = second;
        steps.act = [&] { REQUIRE(scene.collect()); };
      };
      auto done = push_new(scene, *repository);
      if (!done) FAIL(done.error().text());
      scene.check_names(true);
      REQUIRE(scene.collect());
      REQUIRE(scene.collect());
      scene.check_names(true);
      CHECK(scene.count(kCondemned) == 0);
    }
    if (!reached) {
      CHECK(first > 8);
      break;
    }
  }
}

TEST_CASE("store: a push between any two steps of gc has all that it needs") {
  for (size_t at = 0;; ++at) {
    Scene scene;
    Steps steps;
    auto collecting = scene.open(steps);
    bool reached = false;
    steps.act_at = at;
    steps.act = [&] {
      reached = true;
      REQUIRE(push_new(scene, *scene.open()));
    };
    auto done = collect_garbage(*collecting, {}, null_progress());
    if (!done) FAIL(done.error().text());
    if (!reached) {
      CHECK(at > 10);
      break;
    }
    scene.check_names(true);
    REQUIRE(scene.collect());
    scene.check_names(true);
  }
}

TEST_CASE("store: a push that began before gc and ends between its steps has all that it needs") {
  // The push stands still at each of its steps until gc has come to each of its own.
  for (size_t push_at = 0; push_at < 12; push_at += 2) {
    for (size_t gc_at = 0; gc_at < 24; gc_at += 3) {
      Scene scene;
      Steps pushing, collecting;
      auto push_repository = scene.open(pushing), gc_repository = scene.open(collecting);
      std::optional<std::thread> gc;
      std::mutex mutex;
      std::condition_variable changed;
      bool paused = false, ended = false, push_done = false;
      collecting.act_at = gc_at;
      collecting.act = [&] {
        std::unique_lock lock(mutex);
        paused = true;
        changed.notify_all();
        changed.wait(lock, [&] { return push_done; });
      };
      pushing.act_at = push_at;
      pushing.act = [&] {
        gc.emplace([&] {
          auto done = collect_garbage(*gc_repository, {}, null_progress());
          std::lock_guard lock(mutex);
          ended = true;
          changed.notify_all();
          CHECK(done);
        });
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return paused || ended; });
      };
      auto done = push_new(scene, *push_repository);
      {
        std::lock_guard lock(mutex);
        push_done = true;
        changed.notify_all();
      }
      if (gc) gc->join();
      if (!done) FAIL(done.error().text());
      scene.check_names(true);
    }
  }
}

TEST_CASE("store: a push that dies at any step leaves the rest sound, and gc takes its leavings away") {
  for (size_t at = 0;; ++at) {
    Scene scene;
    Steps steps;
    auto repository = scene.open(steps);
    steps.dead_from = at;
    const bool done = push_new(scene, *repository).has_value();
    repository.reset();
    const bool named = scene.count(kImages) == 2;
    CHECK((named || !done));
    scene.check_names(named);
    scene.let_pushes_die();
    REQUIRE(scene.collect());
    scene.check_names(named);
    if (!named) CHECK(scene.count(kPacks) == 1);
    CHECK(scene.count(kPushes) == 0);
    CHECK(scene.count(kCondemned) == 0);
    if (done && steps.calls <= at) break;
    REQUIRE(push_new(scene, *scene.open()));
    scene.check_names(true);
  }
}

TEST_CASE("store: gc that dies at any step loses nothing, and the next goes on") {
  for (size_t at = 0;; ++at) {
    Scene scene;
    Steps steps;
    auto repository = scene.open(steps);
    steps.dead_from = at;
    const bool done = collect_garbage(*repository, {}, null_progress()).has_value();
    repository.reset();
    scene.check_names(false);
    scene.let_pushes_die();
    REQUIRE(scene.collect());
    scene.check_names(false);
    CHECK(scene.count(kPacks) == 1);
    CHECK(scene.count(kCondemned) == 0);
    if (done && steps.calls <= at) break;
  }
}

TEST_CASE(
    "store: gc beside a push that fails then, and takes its packs back, removes no pack that only that had again") {
  for (size_t at = 0;; ++at) {
    Scene scene;
    Steps before, steps;
    auto first = scene.open(before);
    before.act_at = 6;  // it has seen that nothing is condemned
    before.act = [&] { REQUIRE(scene.collect()); };
    REQUIRE(push(*first, scene.content, {"kept", "test", false}, null_progress()));
    REQUIRE(scene.count(kCondemned) == 1);
    auto repository = scene.open(steps);
    bool reached = false;
    steps.act_at = steps.fail_at = at;
    steps.act = [&] {
      reached = true;
      REQUIRE(scene.collect());
    };
    const bool done = push_new(scene, *repository).has_value();
    repository.reset();
    scene.check_names(done);
    CHECK(content_of(scene.pull("kept")) == content_of(scene.content));
    if (!reached) {
      CHECK(done);
      CHECK(at > 8);
      break;
    }
  }
}

TEST_CASE("store: no repair beside a push or a gc, no push beside a repair, each by name") {
  for (const char* kind : {"push", "gc", "repair"}) {
    Scene scene;
    auto repository = scene.open();
    auto marker = PushMarker::put(repository->backend(), kind);
    REQUIRE(marker);
    CheckOptions options;
    options.repair = true;
    auto repaired = check(*scene.open(), options, null_progress());
    REQUIRE(!repaired);
    CHECK(repaired.error().code == Code::kBusy);
    CHECK(repaired.error().text().find(kind) != std::string::npos);
    const bool repairs = std::string(kind) == "repair", pushes = std::string(kind) == "push";
    auto pushed = push_new(scene, *scene.open());
    CHECK(pushed.has_value() == !repairs);
    if (!pushed) CHECK(pushed.error().code == Code::kBusy);
    auto collected = scene.collect();
    CHECK(collected.has_value() == pushes);
    if (!collected) CHECK(collected.error().code == Code::kBusy);
    CHECK(scene.count(kPushes) == 1);
  }
}

TEST_CASE("store: a folder that grows while it is pushed is refused") {
  size_t refused = 0;
  for (size_t at = 0; at < 12; ++at) {
    Scene scene;
    Steps steps;
    auto repository = scene.open(steps);
    steps.act_at = at;
    steps.act = [&] { write(scene.content / "late", "x"); };
    auto done = push_new(scene, *repository);
    if (!done) CHECK(done.error().code == Code::kMismatch);
    refused += !done;
  }
  CHECK(refused > 0);
}

TEST_CASE("store: two collections between each other's steps leave one copy of everything") {
  size_t refused = 0;
  for (size_t at = 0;; ++at) {
    Scene scene;
    REQUIRE(push_new(scene, *scene.open()));
    // A second copy of all, as two pushes at a time make them.
    const fs::path pack_folder = scene.place() / kPacks;
    std::vector<fs::path> packs;
    for (const auto& entry : fs::directory_iterator(pack_folder)) packs.push_back(entry.path());
    for (size_t i = 0; i < packs.size(); ++i)
      fs::copy_file(packs[i], pack_folder / pack_name(std::string(31, 'a') + static_cast<char>('0' + i), 0));
    REQUIRE(scene.check(true).losses.empty());
    Steps steps;
    auto repository = scene.open(steps);
    bool reached = false;
    steps.act_at = at;
    steps.act = [&] {
      reached = true;
      const auto inner = scene.collect();
      refused += !inner && inner.error().code == Code::kBusy;
      CHECK((inner || inner.error().code == Code::kBusy));
    };
    auto done = collect_garbage(*repository, {}, null_progress());
    if (!done) FAIL(done.error().text());
    scene.check_names(true);
    REQUIRE(scene.collect());
    scene.check_names(true);
    if (!reached) break;
  }
  CHECK(refused > 8);
}
