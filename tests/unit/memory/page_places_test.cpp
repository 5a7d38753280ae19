#include "lib/memory/lazy/page_places.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

namespace ckpt::restore {

namespace {

constexpr uint64_t kPage = 4096;

/// What PagePlaces stands for: a page of the image for each page of the process.
using Model = std::map<uint64_t, uint64_t>;

void check_equal(const PagePlaces& places, const Model& model, uint64_t pages) {
  std::map<uint64_t, uint64_t> back;
  for (uint64_t page = 0; page < pages; ++page) {
    auto wanted = model.find(page);
    auto got = places.source_of(page * kPage);
    REQUIRE(got.has_value() == (wanted != model.end()));
    if (!got) continue;
    CHECK(*got == wanted->second * kPage);
    back[wanted->second] = page;
  }
  for (uint64_t source = 0; source < pages; ++source) {
    auto there = places.places_of(source * kPage, kPage);
    REQUIRE(there.size() == back.count(source));
    if (!there.empty()) CHECK(there[0].target == back[source] * kPage);
  }
}

}  // namespace

TEST_CASE("page places: what is added, removed and moved is found from both sides, as in a plain table") {
  constexpr uint64_t kPages = 64;
  std::mt19937_64 random(1);
  for (int run = 0; run < 200; ++run) {
    PagePlaces places;
    Model model;
    for (uint64_t part : {4, 12, 20, 40}) {
      places.add(part * kPage, part * kPage, 6 * kPage);
      for (uint64_t i = part; i < part + 6; ++i) model[i] = i;
    }
    for (int step = 0; step < 12; ++step) {
      const uint64_t size = 1 + random() % 10, from = random() % (kPages - size), to = random() % (kPages - size);
      if (random() % 2 == 0) {
        places.remove(from * kPage, (from + size) * kPage);
        for (uint64_t i = from; i < from + size; ++i) model.erase(i);
      } else if (from + size <= to || to + size <= from) {
        places.move(from * kPage, to * kPage, size * kPage);
        for (uint64_t i = 0; i < size; ++i) {
          model.erase(to + i);
          if (auto it = model.find(from + i); it != model.end()) {
            model[to + i] = it->second;
            model.erase(from + i);
          }
        }
      }
    }
    check_equal(places, model, kPages);
  }
}

TEST_CASE("page places: a range of the image that lies in several places is found in all of them") {
  PagePlaces places;
  places.add(0x100000, 0x500000, 0x10000);
  places.move(0x104000, 0x900000, 0x2000);
  auto found = places.places_of(0x500000, 0x10000);
  REQUIRE(found.size() == 3);
  CHECK(found[1].target == 0x900000);
  CHECK(found[1].source == 0x504000);
  CHECK(found[1].size == 0x2000);
  CHECK(places.has_moved(0x900000, 0x900001));
  CHECK_FALSE(places.has_moved(0x100000, 0x110000));
}

}  // namespace ckpt::restore
