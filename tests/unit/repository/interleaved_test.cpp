// Pushes, collections and crashes between each other's steps.
#include <condition_variable>
#include <thread>

#include "lib/base/clock.h"
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

TEST_CASE("store: a push taken for dead at any step fails or has all it needs, also where its marker comes back") {
  for (const bool comes_back : {false, true}) {
    size_t refused = 0;
    for (size_t at = 0;; ++at) {
      Scene scene;
      const fs::path older = scene.folder.path / "older";
      write(older / "f", noise(70'000, 9));
      REQUIRE(scene.push(older, "new"));
      REQUIRE(scene.collect());
      Steps steps;
      auto repository = scene.open(steps);
      bool reached = false;
      steps.act_at = at;
      steps.act = [&] {
        reached = true;
        const auto said = scene.let_pushes_be_silent();
        for (int i = 0; i < 2; ++i) REQUIRE(scene.collect());
        for (const auto& [path, text] : said) {
          CHECK(!fs::exists(path));
          if (comes_back) REQUIRE(io::write_file(path, text));
        }
      };
      const auto done = push_new(scene, *repository);
      repository.reset();
      CHECK((done || done.error().code == Code::kBusy));
      refused += !done;
      for (int i = 0; i < 2; ++i) {
        scene.check_names(false);
        // What had the name stays until something else has it that is whole.
        CHECK(content_of(scene.pull("new")) == content_of(done ? scene.content : older));
        REQUIRE(scene.collect());
      }
      if (!reached) break;
    }
    CHECK(refused > 8);
  }
}

TEST_CASE("store: what is left of pushes that were taken for dead is forgotten in the end") {
  Scene scene;
  const std::string id(32, 'a'), other(32, 'b'), nobody(32, 'c');
  auto ref = io::read_file(scene.place() / kImages / "stays", kMaxDocument);
  REQUIRE(ref);
  const fs::path pushes = scene.place() / kPushes;
  write(pushes / (id + kTakenForDead), to_json(TakenForDead{"2020-01-01T00:00:00Z"}));
  write(pushes / (other + kTakenForDead), to_json(TakenForDead{rfc3339_now()}));
  for (const std::string& one : {id, other, nobody}) write(pushes / (one + kDraft), *ref);
  scene.remove("stays");
  REQUIRE(scene.collect());
  CHECK(!fs::exists(pushes / (id + kTakenForDead)));
  CHECK(!fs::exists(pushes / (id + kDraft)));
  CHECK(!fs::exists(pushes / (nobody + kDraft)));
  CHECK(fs::exists(pushes / (other + kTakenForDead)));
  CHECK(fs::exists(pushes / (other + kDraft)));
  write(scene.place() / kImages / "stays", *ref);
  scene.check_names(false);
}

TEST_CASE("store: gc -n says what gc then does") {
  const auto same = [](const CollectReport& a, const CollectReport& b) {
    CHECK(a.removed_packs == b.removed_packs);
    CHECK(a.removed_bytes == b.removed_bytes);
    CHECK(a.rewritten_packs == b.rewritten_packs);
    CHECK(a.waiting_packs == b.waiting_packs);
    CHECK(a.waiting_bytes == b.waiting_bytes);
    CHECK(a.rescued_packs == b.rescued_packs);
    CHECK(a.waits_for.size() == b.waits_for.size());
    CHECK(a.dead_pushes == b.dead_pushes);
    CHECK(b.moved_bytes >= a.moved_bytes);
    CHECK(b.moved_bytes < a.moved_bytes + 2000);
  };
  const auto compare = [&](Scene& scene) {
    CollectOptions dry;
    dry.dry_run = true;
    auto said = collect_garbage(*scene.open(), dry, null_progress());
    auto done = scene.collect();
    REQUIRE((said && done));
    same(*said, *done);
    scene.check_names(false);
    return *done;
  };
  {
    Scene scene;
    write(scene.content / "much", noise(3 << 20, 20));
    write(scene.folder.path / "little" / "f", noise(5000, 21));
    REQUIRE(scene.push(scene.content, "both"));
    CHECK(compare(scene).removed_packs == 0);
    CHECK(compare(scene).removed_packs == 0);
    write(scene.content / "other", noise(5000, 21));
    REQUIRE(scene.push(scene.folder.path / "little", "little"));
    scene.remove("both");
    CHECK(compare(scene).removed_packs != 0);
  }
  {
    Scene scene;  // packs of which little is needed
    const fs::path both = scene.folder.path / "both";
    write(both / "much", noise(3 << 20, 20));
    write(both / "little", noise(50'000, 22));
    REQUIRE(scene.push(both, "both"));
    fs::remove(both / "much");
    REQUIRE(scene.push(both, "rest"));
    scene.remove("both");
    const CollectReport done = compare(scene);
    CHECK(done.rewritten_packs != 0);
    CHECK(done.removed_bytes > 3 << 20);
    CHECK(compare(scene).removed_packs == 0);
  }
  {
    Scene scene;  // a push under way has to see it first
    auto repository = scene.open();
    auto marker = PushMarker::put(repository->backend());
    REQUIRE(marker);
    CHECK(compare(scene).waiting_packs != 0);
    CHECK(compare(scene).waiting_packs != 0);
    // Something came to need again what is condemned.
    auto index = scene.open();
    REQUIRE(push(*scene.open(), scene.content, {"again", "test", false}, null_progress()));
    marker->reset();
    compare(scene);
  }
}

TEST_CASE("store: gc keeps what a condemned pack has that a name needs after all, and -n says so") {
  Scene scene;
  const fs::path pack = fs::directory_iterator(scene.place() / kPacks)->path();
  Condemned condemned{rfc3339_now(), {}};
  for (const auto& entry : fs::directory_iterator(scene.place() / kPacks))
    condemned.packs.push_back(entry.path().filename());
  write(scene.place() / kCondemned / std::string(32, 'd'), to_json(condemned));
  CollectOptions dry;
  dry.dry_run = true;
  auto said = collect_garbage(*scene.open(), dry, null_progress());
  auto done = scene.collect();
  REQUIRE((said && done));
  CHECK(done->rescued_packs == 1);
  CHECK(said->rescued_packs == 1);
  CHECK(said->removed_packs == done->removed_packs);
  CHECK(said->removed_bytes == done->removed_bytes);
  scene.check_names(false);
}
