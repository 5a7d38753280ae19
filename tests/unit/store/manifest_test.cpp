#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "lib/base/json_writer.h"
#include "tests/unit/store/filled_manifest.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

/// A valid manifest with the first `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  Manifest manifest = small_manifest();
  manifest.id = std::string(32, 'a');
  std::string json = to_json(manifest);
  size_t at = json.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return json.replace(at, from.size(), to);
}

void refused(const std::string& json, const std::string& because, Code code = Code::kCorrupt) {
  auto manifest = parse_manifest(json);
  REQUIRE_FALSE(manifest);
  CHECK(manifest.error().code == code);
  CHECK_MESSAGE(manifest.error().text().find(because) != std::string::npos, manifest.error().text());
}

}  // namespace

TEST_CASE("manifest: every field of a description comes back as it was, names that are no UTF-8 included") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Manifest manifest = filled(seed);
    std::string json = to_json(manifest);
    auto again = parse_manifest(json);
    REQUIRE_MESSAGE(again, why(again));
    CHECK(*again == manifest);
    CHECK(to_json(*again) == json);
  }
}

TEST_CASE("manifest: the text is plain ASCII, one mapping a line where it fits") {
  Manifest manifest = filled(3);
  std::string json = to_json(manifest);
  for (char c : json) REQUIRE(((c >= 0x20 && c < 0x7f) || c == '\n'));
  CHECK(json.rfind("{\n  \"schema\": \"ckpt.image/3\",\n", 0) == 0);
  CHECK(lay_out_json(R"({"a":[1,2],"b":{"c":"x,y:{","d":[]},"e":{}})", 40) ==
        "{\n  \"a\": [1, 2],\n  \"b\": {\"c\": \"x,y:{\", \"d\": []},\n  \"e\": {}\n}\n");
  CHECK(lay_out_json("[1,22,333,4444]", 12) == "[\n  1, 22,\n  333,\n  4444\n]\n");
}

TEST_CASE("manifest: a cut at any byte is refused") {
  std::string json = to_json(filled(5));
  while (json.back() == '\n') json.pop_back();
  for (size_t size = 0; size < json.size(); size += 1 + size / 200) CHECK_FALSE(parse_manifest(json.substr(0, size)));
}

TEST_CASE("manifest: flipped bits never crash the parser") {
  const std::string json = to_json(filled(6));
  Rng rng(1);
  size_t still_fine = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = json;
    bad[rng() % bad.size()] ^= static_cast<char>(1 << rng() % 8);
    auto manifest = parse_manifest(bad);
    if (manifest) ++still_fine;
    else REQUIRE(!manifest.error().message.empty());
  }
  CHECK(still_fine < 2000);
}

TEST_CASE("manifest: features that this ckpt does not know are refused by name, before anything else is looked at") {
  refused(changed("\"features\": []", "\"features\": [\"time travel\"]"), "time travel", Code::kUnsupported);
  refused(changed("\"features\": []", "\"features\": [1]"), "features[0]: is not a string");
  auto without = parse_manifest(changed("\"features\": [],", ""));
  REQUIRE(without);
  CHECK(without->features.empty());
}

TEST_CASE("manifest: wrong types, ranges and relations are refused with their place") {
  refused("", "is not JSON");
  refused("[]", "is not a JSON object");
  refused("{}", "schema");
  refused(changed("ckpt.image/3", "other/1"), "schema");
  refused(changed("ckpt.image/3", "ckpt.image/2"), "ckpt.image/2", Code::kUnsupported);
  refused(changed("\"tid\": 4711", "\"tid\": \"4711\""), "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"tid\": 4711.0"), "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"tid\": true"), "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"tid\": 0"), "tree.processes[0].threads[0].tid: is out of range");
  refused(changed("\"tid\": 4711", "\"tid\": 4294967297"), "tree.processes[0].threads[0].tid: is out of range");
  refused(changed("\"tid\": 4711", "\"tid\": 18446744073709551616"),
          "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"dit\": 4711"), "tree.processes[0].threads[0].tid: is missing");
  const std::string map =
      "\"maps\": [{\"start\": \"0x1000\", \"end\": \"0x2000\", \"prot\": \"r--\", \"kind\": \"anonymous\", \"name\": "
      "\"\", "
      "\"file\": -1, \"shared_memory\": -1, \"file_offset\": \"0x0\", \"flags\": ";
  CHECK(parse_manifest(changed("\"maps\": []", map + "[\"rd\", \"mr\"], \"guards\": []}]")));
  for (const char* flags : {"[\"rd\", \"rdw\"]", "[\"rd\", \"\"]"})
    refused(changed("\"maps\": []", map + flags + ", \"guards\": []}]"),
            "tree.processes[0].maps[0].flags[1]: does not have two letters");
  refused(changed("\"maps\": []", map + "[\"rd\", 7], \"guards\": []}]"),
          "tree.processes[0].maps[0].flags[1]: is not a string");
  refused(changed("\"maps\": []", map + "\"rd\", \"guards\": []}]"),
          "tree.processes[0].maps[0].flags: is not an array");
  refused(changed("\"nice\": 0", "\"nice\": 20"), "tree.processes[0].threads[0].nice: is out of range");
  refused(changed("\"xstate_size\": 0", "\"xstate_size\": -1"),
          "tree.processes[0].threads[0].xstate_size: is out of range");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": \"0x\""),
          "tree.processes[0].threads[0].regs.rip: is not 0x and hex digits");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": \"0x11112222333344445\""), "tree.processes[0].threads[0].regs.rip");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": \"0xg\""), "tree.processes[0].threads[0].regs.rip");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": 0"), "tree.processes[0].threads[0].regs.rip");
  refused(changed("\"comm\": \"target\"", "\"comm\": \"a\\u0000b\""), "tree.processes[0].threads[0].comm: holds a NUL");
  refused(changed("\"comm\": \"target\"", "\"comm\": {\"hex\": \"6100\"}"),
          "tree.processes[0].threads[0].comm: holds a NUL");
  refused(changed("\"comm\": \"target\"", "\"comm\": {\"hex\": \"61f\"}"),
          "tree.processes[0].threads[0].comm: is not a string");
  refused(changed("\"comm\": \"target\"", "\"comm\": null"), "tree.processes[0].threads[0].comm: is not a string");
  refused(changed("\"restart\": \"none\"", "\"restart\": \"some\""),
          "tree.processes[0].threads[0].restart: is not a value");
  refused(changed("\"uid\": [0, 0, 0, 0]", "\"uid\": [0, 0, 0]"),
          "tree.processes[0].threads[0].uid: has 3 elements, not 4");
  refused(changed("\"uid\": [0, 0, 0, 0]", "\"uid\": [0, 0, -1, 0]"),
          "tree.processes[0].threads[0].uid[2]: is out of range");
  refused(changed("\"affinity\": \"\"", "\"affinity\": \"F\""), "tree.processes[0].threads[0].affinity");
  refused(changed("\"exe\": -1", "\"exe\": 0"), "tree.processes[0].exe: refers to an entry that is not there");
  refused(changed("\"exe\": -1", "\"exe\": -2"), "tree.processes[0].exe: is out of range");
  refused(changed("\"arguments\": [\"target\", \"--flag\"]", "\"arguments\": {}"),
          "tree.processes[0].arguments: is not an array");
  refused(changed("\"id\": \"a", "\"id\": \"x"), "id: is not 32 hex digits");
  refused(changed("\"parent_path\": \"\"", "\"parent_path\": \"../x\""), "parent_path");
}

TEST_CASE("manifest: device memory that does not fit together is refused") {
  auto with = [](const std::function<void(DeviceMemory&)>& change) {
    Manifest manifest = small_manifest();
    manifest.id = std::string(32, 'a');
    manifest.files = {{"pipes", 96, std::string(32, '0')}};
    DeviceMemory& memory = manifest.tree.devices.emplace_back();
    memory.space = 7;
    memory.allocations = {{1, 0x10000, 4 * kBlockSize, "GPU-1", 0, {{0, 1}, {2, 2}}},
                          {2, 0x90000, kBlockSize, "GPU-2", 80, {}}};
    memory.launches = {{5, {0, 255}, "scatter", {{1, 2}}, {}}};
    change(memory);
    return parse_manifest(to_json(manifest));
  };
  auto refused = [&](const std::function<void(DeviceMemory&)>& change, const std::string& what) {
    auto parsed = with(change);
    REQUIRE_FALSE(parsed);
    CHECK_MESSAGE(why(parsed).find("tree.devices[0]" + what) != std::string::npos, why(parsed));
  };
  auto good = with([](DeviceMemory&) {});
  REQUIRE_MESSAGE(good, why(good));
  CHECK(good->tree.devices[0].launches[0].record == std::vector<uint8_t>{0, 255});
  const uint64_t all = ~uint64_t{0};
  refused([](DeviceMemory& m) { m.process = 1; }, ".process: refers");
  refused([](DeviceMemory& m) { m.space = 1 << 16; }, ".space");
  refused([](DeviceMemory& m) { m.allocations[0].size = 0; }, ".allocations[0]: is not made");
  refused([](DeviceMemory& m) { m.allocations[0].size += 4096; }, ".allocations[0]: is not made");
  refused([](DeviceMemory& m) { m.allocations[0].address += 1; }, ".allocations[0]: is not made");
  refused([](DeviceMemory& m) { m.allocations[1].address = 0x40000; }, ".allocations[1]: overlaps");
  refused([](DeviceMemory& m) { m.allocations[1].address = uint64_t{1} << 48; }, ".allocations[1]: overlaps");
  refused([](DeviceMemory& m) { m.allocations[1].size = all - 0xffff; }, ".allocations[1]: overlaps");
  refused([](DeviceMemory& m) { m.allocations[0].hashes_offset = 33; }, ".allocations[0].hashes_offset");
  refused([](DeviceMemory& m) { m.allocations[1].hashes_offset = all; }, ".allocations[1].hashes_offset");
  refused([](DeviceMemory& m) { m.allocations[0].recomputed = {{2, 1}, {0, 1}}; }, ".allocations[0].recomputed");
  refused([](DeviceMemory& m) { m.allocations[0].recomputed = {{1, 4}}; }, ".allocations[0].recomputed");
  refused([&](DeviceMemory& m) { m.allocations[0].recomputed = {{all, 2}}; }, ".allocations[0].recomputed");
  refused([](DeviceMemory& m) { m.allocations[0].recomputed = {{1, 0}}; }, ".allocations[0].recomputed");
}

TEST_CASE("manifest: pid namespaces that lie in none that is there, in themselves or too deep are refused") {
  auto with = [](const std::vector<int>& parents) {
    Manifest manifest = small_manifest();
    manifest.id = std::string(32, 'a');
    for (const int parent : parents) {
      FurtherNamespace& further = manifest.tree.namespaces.further.emplace_back();
      further.kind = "pid", further.parent = parent;
    }
    return to_json(manifest);
  };
  const std::string place = "tree.namespaces.further[0].parent: ";
  CHECK(parse_manifest(with({1, -1})));
  refused(with({2, -1}), place + "refers to an entry that is not there");
  refused(with({-2}), place + "is out of range");
  refused(with({0}), place + "lies within itself");
  refused(with({1, 0}), place + "lies within itself");
  std::vector<int> chain(kMostPidLevels);
  for (size_t i = 0; i < chain.size(); ++i) chain[i] = static_cast<int>(i) - 1;
  CHECK(parse_manifest(with(chain)));
  chain.push_back(kMostPidLevels - 1);
  refused(with(chain), "further[32].parent: lies within itself, or too deep");
}

TEST_CASE("manifest: members may come in any order and with unknown ones between them, but none twice") {
  Manifest manifest = small_manifest();
  manifest.id = std::string(32, 'a');
  auto equal = [&](const std::string& json) {
    auto again = parse_manifest(json);
    REQUIRE_MESSAGE(again, why(again));
    CHECK(*again == manifest);
  };
  equal(changed("\"tid\": 4711,", "\"new\": {\"tid\": [null, 1.5e3, {}]}, \"tid\": 4711, \"newer\": \"\\u20ac\","));
  equal(changed("{\n  \"schema\":", "{\"\\u00e9\": true, \"sch\\u0065ma\":"));
  // Of all objects the last member first.
  std::function<nlohmann::ordered_json(const nlohmann::ordered_json&)> turned =
      [&](const nlohmann::ordered_json& json) {
        nlohmann::ordered_json out =
            json.is_object() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
        if (!json.is_structured()) return json;
        if (json.is_array()) {
          for (const auto& element : json) out.push_back(turned(element));
          return out;
        }
        std::vector<std::string> names;
        for (const auto& [name, value] : json.items()) names.insert(names.begin(), name);
        for (const auto& name : names) out[name] = turned(json[name]);
        return out;
      };
  equal(turned(nlohmann::ordered_json::parse(changed("", ""))).dump());
  refused(changed("\"tid\": 4711,", "\"tid\": 4711, \"tid\": 4711,"),
          "tree.processes[0].threads[0]: has two members 'tid'");
  refused(changed("\"kind\": \"dump\",", "\"x\": 1, \"x\": 1, \"kind\": \"dump\","), "has two members 'x'");
  std::string many = "\"x0\": 0, ";
  for (int i = 1; i <= 20'000; ++i) many += "\"x" + std::to_string(i) + "\": 0, ";
  refused(changed("\"tid\":", many + "\"tid\":"), "tree.processes[0].threads[0]: has more than 10000 members");
}

TEST_CASE("manifest: what is no JSON is told with its byte, wherever it is") {
  refused(changed("\"tid\": 4711", "\"tid\": 04711"), "is not JSON: a number begins with 0 at byte");
  refused(changed("\"pipes\": []", "\"pipes\": [}"), "is not JSON: ");
  refused(changed("", "") + "{}", "is not JSON: there is text behind its end");
  refused(changed("\"comm\": \"target\"", "\"comm\": \"\xff\""), "is not JSON: there is invalid UTF-8");
}

TEST_CASE("manifest: mappings must be in order, whole pages, with their indices and guards inside") {
  auto with = [](const std::function<void(TreeImage&)>& change) {
    Manifest manifest = small_manifest();
    manifest.id = std::string(32, 'a');
    manifest.tree.processes[0].maps.resize(2);
    manifest.tree.processes[0].maps[0].start = 0x1000, manifest.tree.processes[0].maps[0].end = 0x3000;
    manifest.tree.processes[0].maps[1].start = 0x3000, manifest.tree.processes[0].maps[1].end = 0x4000;
    change(manifest.tree);
    return to_json(manifest);
  };
  CHECK(parse_manifest(with([](TreeImage&) {})));
  refused(with([](TreeImage& t) { t.processes[0].maps[1].start = 0x2000; }), "tree.processes[0].maps[1]");
  refused(with([](TreeImage& t) { t.processes[0].maps[1].start = 0x4000; }), "tree.processes[0].maps[1]");
  refused(with([](TreeImage& t) { t.processes[0].maps[0].start = 0x1001; }), "tree.processes[0].maps[0]");
  refused(with([](TreeImage& t) { t.processes[0].maps[0].file = 0; }), "tree.processes[0].maps[0].file");
  refused(with([](TreeImage& t) {
            t.processes[0].maps[0].guards = {{0x2000, 0x4000}};
          }),
          "tree.processes[0].maps[0].guards");
  refused(with([](TreeImage& t) { t.descriptors.resize(1), t.descriptors[0].pipe = 0; }), "tree.descriptors[0].pipe");
  refused(with([](TreeImage& t) { t.processes[0].threads.clear(); }), "tree.processes[0].threads: is empty");
}

TEST_CASE("manifest: nesting and numbers of values are bounded before a tree is built") {
  refused(std::string(1'000'000, '['), "is nested deeper than");
  std::string deep = changed("\"arguments\": [\"target\", \"--flag\"]",
                             "\"x\": " + std::string(100'000, '[') + std::string(100'000, ']') + ", \"arguments\": []");
  refused(deep, "is nested deeper than");
  std::string many = "[0";
  for (int i = 0; i < 13'000'000; ++i) many += ",0";
  refused(many + "]", "holds more than");
  refused(std::string((256u << 20) + 1, ' '), "is larger than");
}
