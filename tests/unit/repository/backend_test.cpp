// The contract: what every backend of a store owes, and every place that takes objects in parts. Run on a folder; on
// the URL that CKPT_STORE_URL names; and on the folder CKPT_STORE_FOLDER through the server of CKPT_STORE_HTTP, which
// only reads it. tests/remote/contract.py names them all.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "lib/remote/backend.h"
#include "lib/remote/md5.h"
#include "tests/unit/repository/steps.h"

using namespace ckpt;
using namespace ckpt::repository;
using namespace ckpt::repository::test;

namespace {

std::string name_of_this_try() {
  static std::atomic<int> number{0};
  return "/contract" + std::to_string(::getpid()) + "-" + std::to_string(number++);
}

/// One that is read by a URL and written where its server has it.
class ReadElsewhere final : public Backend {
 public:
  ReadElsewhere(std::unique_ptr<Backend> there, std::unique_ptr<Backend> here)
      : there_(std::move(there)), here_(std::move(here)) {}
  Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) override {
    CHECK(there_->put(name, bytes, only_if_absent).error().code == Code::kUnsupported);
    return here_->put(name, bytes, only_if_absent);
  }
  Result<void> remove(const std::string& name) override {
    CHECK(there_->remove(name).error().code == Code::kUnsupported);
    return here_->remove(name);
  }
  Result<std::vector<StoredObject>> list(const std::string& folder) override { return there_->list(folder); }
  Result<StoredObject> look_up(const std::string& name) override { return there_->look_up(name); }
  Result<void> read(const std::string& name, uint64_t size, uint64_t offset, MutableByteSpan out) override {
    return there_->read(name, size, offset, out);
  }
  std::string subject(const std::string& name) const override { return there_->subject(name); }
  std::optional<std::string> strangers() const override { return there_->strangers(); }
  size_t good_read() const override { return there_->good_read(); }

 private:
  std::unique_ptr<Backend> there_, here_;
};

std::unique_ptr<Backend> opened(const std::string& place) {
  auto out = open_backend(place, true, nullptr);
  if (!out) FAIL(out.error().text());
  return std::move(*out);
}

/// Calls `test` with each backend there is.
void each_backend(const std::function<void(Backend&, const std::function<std::unique_ptr<Backend>()>&)>& test) {
  ckpt::test::TempDir dir;
  std::vector<std::function<std::unique_ptr<Backend>()>> places;
  places.push_back([&] { return opened((dir.path / "store").string()); });
  if (const char* url = std::getenv("CKPT_STORE_URL"))
    places.push_back([place = url + name_of_this_try()] { return opened(place); });
  const char *folder = std::getenv("CKPT_STORE_FOLDER"), *http = std::getenv("CKPT_STORE_HTTP");
  if (folder != nullptr && http != nullptr) {
    places.push_back([here = folder + name_of_this_try(), folder, http] {
      auto written = opened(here);
      return std::make_unique<ReadElsewhere>(opened(http + here.substr(std::strlen(folder))), std::move(written));
    });
  }
  for (const auto& open : places) {
    const auto backend = open();
    CAPTURE(backend->subject());
    test(*backend, open);
  }
}

/// The place that CKPT_STORE_URL names, where it takes objects in parts.
std::unique_ptr<remote::WritableBackend> place_of_parts() {
  const char* text = std::getenv("CKPT_STORE_URL");
  if (text == nullptr) return nullptr;
  auto place = remote::open_writable(remote::parse_url(text + name_of_this_try()).value(), nullptr);
  if (!place) FAIL(place.error().text());
  return (*place)->takes_parts() ? std::move(*place) : nullptr;
}

std::string read_back(Backend& backend, const std::string& folder, const std::string& name) {
  auto out = read_object(backend, folder, name, 1 << 30);
  return out ? *out : "none: " + out.error().text();
}

}  // namespace

TEST_CASE("backend: what was put is listed and read, by others too, and gone when it was removed") {
  each_backend([](Backend& backend, const auto& open) {
    CHECK(backend.list(kPacks)->empty());
    CHECK(backend.list("")->empty());
    const std::string body = noise(300'000, 1);
    REQUIRE(backend.put(in_folder(kPacks, "one"), as_bytes(body), true));
    REQUIRE(backend.put(in_folder(kPacks, "empty"), {}, true));
    REQUIRE(backend.put(in_folder(kImages, "a-name,with+all=of:them_1.0"), as_bytes("x"), true));
    REQUIRE(backend.put("config", as_bytes("config"), true));
    const auto other = open();
    const auto listed = other->list(kPacks);
    REQUIRE((listed && listed->size() == 2));
    CHECK((*listed)[0].name == "empty");
    CHECK((*listed)[1].name == "one");
    CHECK((*listed)[1].size == body.size());
    CHECK(read_back(*other, kPacks, "one") == body);
    CHECK(read_back(*other, kPacks, "empty").empty());
    CHECK(read_back(*other, "", "config") == "config");
    CHECK(read_back(*other, kImages, "a-name,with+all=of:them_1.0") == "x");
    CHECK(other->look_up("packs/one")->size == body.size());
    CHECK(other->look_up("packs/one")->name == "one");
    CHECK(other->look_up("config")->size == 6);
    for (const char* none : {"packs/on", "packs/one-more", "images/one", "packs", "damaged/one"})
      CHECK(other->look_up(none).error().code == Code::kNotFound);
    std::string part(1000, '\0');
    REQUIRE(other->read("packs/one", body.size(), 12'345, std::as_writable_bytes(std::span(part))));
    CHECK(part == body.substr(12'345, 1000));
    REQUIRE(other->remove("packs/one"));
    REQUIRE(other->remove("packs/one"));
    CHECK(backend.list(kPacks)->size() == 1);
    auto gone = backend.read("packs/one", body.size(), 0, std::as_writable_bytes(std::span(part)));
    CHECK((!gone && gone.error().code == Code::kNotFound));
  });
}

TEST_CASE("backend: a name is taken once unless it is to be replaced") {
  each_backend([](Backend& backend, const auto&) {
    REQUIRE(backend.put("images/n", as_bytes("first"), true));
    auto again = backend.put("images/n", as_bytes("second"), true);
    CHECK((!again && again.error().code == Code::kMismatch));
    CHECK(read_back(backend, kImages, "n") == "first");
    REQUIRE(backend.put("images/n", as_bytes("third, which is longer"), false));
    CHECK(read_back(backend, kImages, "n") == "third, which is longer");
  });
}

TEST_CASE("backend: of many that want a name at once one gets it, and all of it") {
  each_backend([](Backend& backend, const auto&) {
    std::atomic<int> won{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        if (backend.put("images/wanted", as_bytes(std::string(100'000, static_cast<char>('a' + i))), true)) ++won;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(won == 1);
    const std::string text = read_back(backend, kImages, "wanted");
    CHECK(text == std::string(100'000, text.empty() ? '?' : text[0]));
  });
}

TEST_CASE("backend: what is shorter than it was listed is damage, and names stay in the store") {
  each_backend([](Backend& backend, const auto&) {
    REQUIRE(backend.put("packs/short", as_bytes("short"), true));
    std::string out(10, '\0');
    auto read = backend.read("packs/short", 10, 0, std::as_writable_bytes(std::span(out)));
    REQUIRE(!read);
    CHECK((read.error().code == Code::kCorrupt || read.error().code == Code::kMismatch));
    for (const char* name : {"packs/../config", "packs/.hidden", "packs/a/b", "/etc/passwd", "packs/", "", ".."}) {
      CHECK(!backend.put(name, as_bytes("x"), false));
      CHECK(!backend.read(name, 1, 0, std::as_writable_bytes(std::span(out).first(1))));
      CHECK(!backend.remove(name));
    }
  });
}

TEST_CASE("backend: an object in parts is seen once it is complete, and has the bytes that were sent") {
  const auto place = place_of_parts();
  if (!place) return;
  const std::string name = "a+b=c/pages", last = noise(1000, 4);
  const std::string first = noise(remote::WritableBackend::kSmallestPart, 3);
  const std::string upload = place->begin_upload(name).value();
  // In whatever order they come.
  const std::string second_tag = place->upload_part(name, upload, 2, as_bytes(last)).value();
  const std::string first_tag = place->upload_part(name, upload, 1, as_bytes(first)).value();
  CHECK(place->list(10).error().code == Code::kNotFound);
  const auto listed = place->list_parts(name, upload).value();
  REQUIRE(listed.size() == 2);
  CHECK(remote::without_quotes(listed[0]) == remote::without_quotes(first_tag));
  const std::vector<std::string> tags = {first_tag, second_tag};
  REQUIRE(place->complete_upload(name, upload, tags, true));
  const auto there = place->list(10).value();
  REQUIRE(there.size() == 1);
  CHECK((there[0].name == name && there[0].size == first.size() + last.size()));
  std::string out(2000, '\0');
  REQUIRE(place->read(there[0], first.size() - 1000, std::as_writable_bytes(std::span(out))));
  CHECK(out == first.substr(first.size() - 1000) + last);
  REQUIRE(place->remove(name));
  REQUIRE(place->remove(name));
  CHECK(place->list(10).error().code == Code::kNotFound);
}

TEST_CASE("backend: an upload that is taken back leaves nothing, and one that is not there is told") {
  const auto place = place_of_parts();
  if (!place) return;
  const std::string part = noise(1000, 5), upload = place->begin_upload("x").value();
  REQUIRE(place->upload_part("x", upload, 1, as_bytes(part)));
  REQUIRE(place->abort_upload("x", upload));
  REQUIRE(place->abort_upload("x", upload));
  CHECK(place->list_parts("x", upload).error().code == Code::kNotFound);
  CHECK(place->list(10).error().code == Code::kNotFound);
  CHECK_FALSE(place->upload_part("x", upload, 1, as_bytes(part)));
}

TEST_CASE("backend: a folder of something else is no store, links are not followed, leavings are taken away") {
  ckpt::test::TempDir dir;
  write(dir.path / "other" / "thesis.tex", "mine");
  CHECK(!open_backend((dir.path / "other").string(), true, nullptr));
  CHECK(!open_backend((dir.path / "missing").string(), false, nullptr));
  CHECK(!fs::exists(dir.path / "missing"));
  auto backend = open_backend((dir.path / "store").string(), true, nullptr);
  REQUIRE(backend);
  write(dir.path / "secret", "secret");
  fs::create_symlink(dir.path / "secret", dir.path / "store" / "packs" / "link");
  CHECK((*backend)->list(kPacks)->empty());
  std::string out(6, '\0');
  CHECK(!(*backend)->read("packs/link", 6, 0, std::as_writable_bytes(std::span(out))));
  REQUIRE((*backend)->put("packs/link", as_bytes("x"), false));
  CHECK(*io::read_file(dir.path / "secret", 100) == "secret");
  write(dir.path / "store" / "packs" / ".new-0123456789abcdef", "left behind");
  REQUIRE((*backend)->tidy());
  CHECK(!fs::exists(dir.path / "store" / "packs" / ".new-0123456789abcdef"));
}
