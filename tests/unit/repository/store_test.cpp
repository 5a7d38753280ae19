#include <condition_variable>
#include <set>
#include <thread>

#include "lib/repository/pack_writer.h"
#include "lib/repository/usage.h"
#include "tests/unit/repository/steps.h"

using namespace ckpt;
using namespace ckpt::repository;
using namespace ckpt::repository::test;

namespace {

void make_checkpoint(const fs::path& top) {
  write(top / "large.bin", noise(9 << 20, 1));
  write(top / "zeros.bin", std::string(5 << 20, '\0') + noise(100, 2) + std::string(3 << 20, '\0'));
  write(top / "inner" / "small", "a few bytes");
  write(top / "inner" / "empty", "");
  write(top / "text", [] {
    std::string out;
    for (int i = 0; i < 200'000; ++i) out += std::to_string(i * 7) + " ";
    return out;
  }());
  fs::create_directories(top / "inner" / "nothing in it");
  fs::create_symlink("inner/small", top / "link");
  REQUIRE(::chmod((top / "inner" / "small").c_str(), 0640) == 0);
  REQUIRE(::chmod((top / "inner" / "nothing in it").c_str(), 0500) == 0);
  const timespec times[2] = {{1'577'934'245, 123'456'789}, {1'577'934'245, 123'456'789}};
  const timespec before[2] = {{-2, 500'000'000}, {-2, 500'000'000}};
  REQUIRE(::utimensat(AT_FDCWD, (top / "text").c_str(), times, 0) == 0);
  REQUIRE(::utimensat(AT_FDCWD, (top / "link").c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
  REQUIRE(::utimensat(AT_FDCWD, (top / "inner").c_str(), before, 0) == 0);
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t sum = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    sum += entry.is_regular_file() ? entry.file_size() : 0;
  return sum;
}

}  // namespace

TEST_CASE("store: what is pulled is what was pushed, with kinds, modes, times and holes") {
  Store store;
  const fs::path top = store.folder.path / "checkpoint";
  make_checkpoint(top);
  auto done = store.push(top, "one");
  REQUIRE(done);
  CHECK(done->stored < (10 << 20) + (1 << 20));
  const fs::path back = store.pull("one");
  CHECK(content_of(back) == content_of(top));
  struct stat st {};
  REQUIRE(::stat((back / "zeros.bin").c_str(), &st) == 0);
  CHECK(st.st_blocks * 512 <= 4 << 20);
  CHECK(store.sound());
  REQUIRE(store.push(top / "text", "a.file"));
  const fs::path file = store.pull("a.file");
  CHECK(file.filename() == "text");
  CHECK(*io::read_file(file, 1 << 30) == *io::read_file(top / "text", 1 << 30));
}

TEST_CASE("store: what is there is not stored again, wherever it lies in whichever file") {
  Store store;
  const fs::path a = store.folder.path / "a", b = store.folder.path / "b";
  const std::string body = noise(12 << 20, 3);
  write(a / "weights", body);
  write(b / "other name", "a few bytes more in front" + body + "and behind");
  REQUIRE(store.push(a, "a"));
  const uint64_t before = bytes_in(store.place());
  REQUIRE(store.push(a, "again"));
  CHECK(bytes_in(store.place()) - before < 8192);
  auto moved = store.push(b, "b");
  REQUIRE(moved);
  CHECK(moved->new_bytes < 6 << 20);
  CHECK(content_of(store.pull("b")) == content_of(b));
  CHECK(content_of(store.pull("again")) == content_of(a));
}

TEST_CASE("store: a name is taken once, and replaced by force") {
  Store store;
  write(store.folder.path / "a" / "f", "one");
  write(store.folder.path / "b" / "f", "two");
  REQUIRE(store.push(store.folder.path / "a", "name"));
  auto again = store.push(store.folder.path / "b", "name");
  REQUIRE(!again);
  CHECK(again.error().code == Code::kUsage);
  CHECK(*io::read_file(store.pull("name") / "f", 10) == "one");
  REQUIRE(store.push(store.folder.path / "b", "name", true));
  CHECK(*io::read_file(store.pull("name") / "f", 10) == "two");
  for (const char* name : {"", ".", "..", "a/b", "-x", "a@b", "a b", "a\n"}) {
    auto bad = store.push(store.folder.path / "a", name);
    CHECK((!bad && bad.error().code == Code::kUsage));
  }
}

TEST_CASE("store: links out, sockets and what changes meanwhile are refused by name, and leave nothing") {
  Store store;
  const fs::path top = store.folder.path / "c";
  write(top / "f", "one");
  fs::create_symlink("/etc/passwd", top / "out");
  auto refused = store.push(top, "c");
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUnsupported);
  fs::remove(top / "out");
  fs::create_symlink("sub/../../x", top / "out");
  CHECK(!store.push(top, "c"));
  fs::remove(top / "out");
  REQUIRE(::mkfifo((top / "pipe").c_str(), 0600) == 0);
  CHECK(!store.push(top, "c"));
  fs::remove(top / "pipe");
  Steps steps;
  auto repository = store.open(steps);
  for (size_t n = 0; n < 40; ++n) {
    steps.calls = 0, steps.act_at = n;
    steps.act = [&] { write(top / "f", noise(1000, static_cast<unsigned>(n))); };
    auto done = push(*repository, top, {"c" + std::to_string(n), "test", false}, null_progress());
    if (done)
      CHECK(content_of(store.pull("c" + std::to_string(n))).size() == 2);
    else
      CHECK(done.error().code == Code::kMismatch);
  }
  CHECK(store.count(kPushes) == 0);
  CHECK(store.sound());
}

TEST_CASE("store: gc gives back what nothing needs, and rewrites packs of which little is needed") {
  Store store;
  const std::string shared = noise(3 << 20, 4);
  write(store.folder.path / "a" / "f", shared);
  write(store.folder.path / "a" / "g", noise(9 << 20, 5));
  write(store.folder.path / "b" / "f", shared);
  REQUIRE(store.push(store.folder.path / "a", "a"));
  REQUIRE(store.push(store.folder.path / "b", "b"));
  REQUIRE(store.collect());
  CHECK(bytes_in(store.place()) > 12 << 20);
  store.remove("a");
  CollectOptions dry;
  dry.dry_run = true;
  const uint64_t before = bytes_in(store.place());
  REQUIRE(collect_garbage(*store.open(), dry, null_progress()));
  CHECK(bytes_in(store.place()) == before);
  auto done = store.collect();
  REQUIRE(done);
  CHECK(done->rewritten_packs != 0);
  CHECK(bytes_in(store.place()) < 4 << 20);
  CHECK(content_of(store.pull("b")) == content_of(store.folder.path / "b"));
  store.remove("b");
  REQUIRE(store.collect());
  CHECK(bytes_in(store.place()) < 1000);
  CHECK(store.count(kCondemned) == 0);
  CHECK(store.sound());
}

TEST_CASE("store: the index can be lost, and lie, and be made anew") {
  Store store;
  const fs::path top = store.folder.path / "c";
  make_checkpoint(top);
  REQUIRE(store.push(top, "c"));
  for (const auto& entry : fs::directory_iterator(store.place() / kIndex)) write(entry.path(), noise(1000, 6));
  CHECK(content_of(store.pull("c")) == content_of(top));
  CHECK(store.check().damage.size() == 1);
  CHECK(store.check().losses.empty());
  CHECK(!store.check(true).repaired.empty());
  CHECK(store.sound());
  fs::remove_all(store.place() / kIndex);
  CHECK(content_of(store.pull("c")) == content_of(top));
  CHECK(store.sound());
}

TEST_CASE("store: each damaged byte of a pack is found, and it is said what is lost") {
  Store store;
  write(store.folder.path / "a" / "f", noise(300'000, 7));
  write(store.folder.path / "b" / "only text", std::string(3000, 'x') + "y");
  REQUIRE(store.push(store.folder.path / "a", "a"));
  REQUIRE(store.push(store.folder.path / "b", "b"));
  for (const auto& entry : fs::directory_iterator(store.place() / kPacks)) {
    const std::string good = *io::read_file(entry.path(), 1 << 30);
    for (size_t at = 0; at < good.size(); at += 1 + good.size() / 23) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      REQUIRE(io::write_file(entry.path(), bad));
      const CheckReport report = store.check();
      // The header of a pack is for people.
      CHECK((!report.damage.empty() || at < kPackHeader));
      for (const Loss& loss : report.losses) CHECK((loss.name == "a" || loss.name == "b"));
    }
    for (size_t size = 0; size < good.size(); size += 1 + good.size() / 5) {
      REQUIRE(io::write_file(entry.path(), good.substr(0, size)));
      const CheckReport report = store.check();
      CHECK(!report.losses.empty());
      auto pulled =
          pull(*store.open(), report.losses[0].name, {store.folder.path / "no", false, true}, null_progress());
      CHECK((!pulled && pulled.error().code == Code::kCorrupt));
      CHECK(!fs::exists(store.folder.path / "no"));
    }
    REQUIRE(io::write_file(entry.path(), good));
  }
  CHECK(store.sound());
}

TEST_CASE("store: repair saves what is sound, and a push of the same brings back the rest") {
  Store store;
  write(store.folder.path / "a" / "first", noise(3 << 20, 8));
  write(store.folder.path / "a" / "second", noise(3 << 20, 9));
  REQUIRE(store.push(store.folder.path / "a", "a"));
  const auto pack = fs::directory_iterator(store.place() / kPacks)->path();
  std::string bytes = *io::read_file(pack, 1 << 30);
  bytes[2000] = static_cast<char>(bytes[2000] ^ 1);
  REQUIRE(io::write_file(pack, bytes));
  const CheckReport report = store.check(true);
  REQUIRE(report.losses.size() == 1);
  CHECK(store.count(kDamaged) == 1);
  CHECK(store.check().losses.size() == 1);
  CHECK(store.check().damage.empty());
  REQUIRE(store.push(store.folder.path / "a", "again"));
  CHECK(store.sound());
  CHECK(content_of(store.pull("a")) == content_of(store.folder.path / "a"));
}

TEST_CASE("store: with a key other ids, and nobody without it reads, writes or forges") {
  Store store;
  write(store.folder.path / "key", noise(32, 10));
  write(store.folder.path / "wrong", noise(32, 11));
  write(store.folder.path / "short", "guess me");
  write(store.folder.path / "a" / "f", noise(100'000, 12));
  store.key = store.folder.path / "key";
  REQUIRE(store.push(store.folder.path / "a", "a"));
  CHECK(content_of(store.pull("a")) == content_of(store.folder.path / "a"));
  CHECK(store.sound());
  const std::string ref = *io::read_file(store.place() / kImages / "a", kMaxDocument);
  for (const char* key : {"", "wrong", "short"}) {
    const fs::path file = *key == 0 ? fs::path() : store.folder.path / key;
    CHECK(!Repository::open({store.place().string(), file, false}, store.cancel));
  }
  // Sealed by who does not have the key, and by who has the key of chunks.
  auto parsed = parse_ref(ref, "a", store.open()->seal(), "");
  REQUIRE(parsed);
  parsed->kind = "model";
  for (const IdBuilder& seal : {IdBuilder(), store.open()->ids()}) {
    REQUIRE(io::write_file(store.place() / kImages / "a", encode_ref(*parsed, seal)));
    CHECK(!store.open()->ref("a"));
  }
}

TEST_CASE("store: a store that others may write is not believed what an image is") {
  Store store;
  write(store.folder.path / "a" / "manifest.sha256", "looks like an image");
  REQUIRE(store.push(store.folder.path / "a", "a"));
  const fs::path to = store.folder.path / "to";
  REQUIRE(pull(*store.open(), "a", {to, false, false}, null_progress()));
  REQUIRE(::chmod((store.place() / kPacks).c_str(), 0777) == 0);
  auto refused = pull(*store.open(), "a", {store.folder.path / "to2", false, false}, null_progress());
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kPermission);
  CHECK(!fs::exists(store.folder.path / "to2"));
  CHECK(pull(*store.open(), "a", {store.folder.path / "to2", false, true}, null_progress()));
}

TEST_CASE("store: a pull takes from what it replaces what is the same") {
  Store store;
  const std::string body = noise(12 << 20, 13);
  write(store.folder.path / "a" / "f", body);
  write(store.folder.path / "b" / "f", body.substr(0, 6 << 20) + "changed" + body.substr(6 << 20));
  REQUIRE(store.push(store.folder.path / "a", "a"));
  REQUIRE(store.push(store.folder.path / "b", "b"));
  const fs::path to = store.folder.path / "to";
  REQUIRE(pull(*store.open(), "a", {to, false, false}, null_progress()));
  CHECK(!pull(*store.open(), "b", {to, false, false}, null_progress()));
  auto done = pull(*store.open(), "b", {to, true, false}, null_progress());
  REQUIRE(done);
  CHECK(done->reused > 7 << 20);
  CHECK(done->fetched < 6 << 20);
  CHECK(content_of(to) == content_of(store.folder.path / "b"));
}

TEST_CASE("store: a name that says other sizes of itself than its files have is refused before anything is made") {
  Store store;
  write(store.folder.path / "a" / "f", noise(100'000, 14));
  write(store.folder.path / "a" / "g", noise(1000, 15));
  REQUIRE(store.push(store.folder.path / "a", "a"));
  const fs::path object = store.place() / kImages / "a";
  const std::string good = *io::read_file(object, kMaxDocument);
  auto repository = store.open();
  const auto ref = parse_ref(good, "a", repository->seal(), "");
  REQUIRE(ref);
  auto more = *ref, files = *ref, huge = *ref;
  more.bytes += 1, files.files -= 1, huge.bytes = UINT64_MAX - 5;
  for (const Ref& lies : {more, files, huge}) {
    REQUIRE(io::write_file(object, encode_ref(lies, repository->seal())));
    auto pulled = pull(*store.open(), "a", {store.folder.path / "no", false, true}, null_progress());
    REQUIRE(!pulled);
    CHECK(pulled.error().code == Code::kCorrupt);
    CHECK(!fs::exists(store.folder.path / "no"));
    CHECK(store.check().losses.size() == 1);
    auto usage = measure_usage(*store.open());
    REQUIRE(usage);
    CHECK(usage->names.at(0).damage);
    CHECK(usage->bytes == 0);
    CHECK(!store.collect());
  }
  // Files that are too large together: zeros take no room in a tree.
  Entry top, one, two;
  top.type = Entry::Type::kFolder, top.mode = 0700;
  one.path = "one", two.path = "two", one.mode = two.mode = 0600;
  one.size = two.size = INT64_MAX;
  ListWriter zeros;
  zeros.add_zeros(INT64_MAX);
  one.list = two.list = zeros.take();
  Entry three = two;
  three.path = "three";
  const std::string tree = encode_tree({top, one, two, three});
  auto marker = PushMarker::put(repository->backend());
  REQUIRE(marker);
  Ref sum = *ref;
  {
    PackWriter writer(repository->backend(), (*marker)->id());
    PackWriter::Stream stream(writer);
    const Id id = repository->ids().of(as_bytes(tree));
    REQUIRE(stream.add(id, as_bytes(tree)));
    REQUIRE(stream.flush());
    REQUIRE(writer.finish());
    ListWriter list;
    list.add(id, static_cast<uint32_t>(tree.size()));
    sum.tree = list.take(), sum.tree_bytes = tree.size();
  }
  sum.bytes = static_cast<uint64_t>(3) * INT64_MAX, sum.files = 3;
  REQUIRE(io::write_file(object, encode_ref(sum, repository->seal())));
  auto pulled = pull(*store.open(), "a", {store.folder.path / "no", false, true}, null_progress());
  REQUIRE(!pulled);
  CHECK(pulled.error().text().find("too large together") != std::string::npos);
  REQUIRE(io::write_file(object, good));
  REQUIRE(marker->get() != nullptr);
  CHECK(store.sound());
}

TEST_CASE("store: trees and lists of names are read by several threads at a time") {
  Store store;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "n" + std::to_string(i);
    write(store.folder.path / name / "f", noise(40'000 + 1000 * i, 30 + i));
    REQUIRE(store.push(store.folder.path / name, name));
  }
  Steps steps;
  auto repository = store.open(steps);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::condition_variable changed;
  steps.each_read = [&](const std::string& name) {
    if (!name.starts_with(kPacks)) return;
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(5), [&] { return threads.size() > 1; });
  };
  auto usage = measure_usage(*repository);
  REQUIRE(usage);
  CHECK(threads.size() > 1);
  CHECK(usage->names.size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK(usage->names[i].alone > 40'000 + 1000 * i);
  CHECK(usage->unneeded == 0);
}
