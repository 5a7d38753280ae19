// What every backend of a store owes: run on a folder, and on the URL that CKPT_STORE_URL names (tests/remote/stores.py
// starts a server).
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/unit/repository/steps.h"

using namespace ckpt;
using namespace ckpt::repository;
using namespace ckpt::repository::test;

namespace {

/// Calls `test` with each backend there is.
void each_backend(const std::function<void(Backend&, const std::function<std::unique_ptr<Backend>()>&)>& test) {
  ckpt::test::TempDir dir;
  std::vector<std::string> places = {(dir.path / "store").string()};
  static std::atomic<int> number{0};
  if (const char* url = std::getenv("CKPT_STORE_URL"))
    places.push_back(std::string(url) + "/contract" + std::to_string(::getpid()) + "-" + std::to_string(number++));
  for (const std::string& place : places) {
    CAPTURE(place);
    auto open = [&] {
      auto out = open_backend(place, true, nullptr);
      if (!out) FAIL(out.error().text());
      return std::move(*out);
    };
    test(*open(), open);
  }
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
