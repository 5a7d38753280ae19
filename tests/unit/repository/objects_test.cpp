// What lies in a store, from a stranger: cut at every byte, every byte flipped, every length a lie.
#include "lib/repository/cutter.h"
#include "lib/repository/wire.h"
#include "tests/unit/repository/steps.h"

using namespace ckpt;
using namespace ckpt::repository;
using namespace ckpt::repository::test;

namespace {

Id id_of(const std::string& text) { return IdBuilder().of(as_bytes(text)); }

PackTable sample_table() {
  PackTable out;
  uint64_t at = kPackHeader;
  for (uint32_t i = 0; i < 3; ++i) {
    Group group;
    group.offset = at, group.length = 300, group.codec = i == 1 ? Codec::kZstd : Codec::kRaw;
    group.stored = i == 1 ? 100 : 300, group.first = i * 3, group.count = 3;
    at += group.stored;
    out.groups.push_back(group);
    for (uint32_t k = 0; k < 3; ++k) out.lengths.push_back(100), out.ids.push_back(id_of(std::to_string(i * 3 + k)));
  }
  return out;
}
uint64_t size_of(const std::string& table) { return kPackHeader + 700 + table.size() + kPackTrailer; }

std::vector<Entry> sample_tree() {
  ListWriter list;
  list.add(id_of("a"), 4096), list.add(id_of("b"), 4096), list.add_zeros(100), list.add(id_of("c"), 7);
  Entry top, folder, file, link, large;
  top.type = folder.type = Entry::Type::kFolder, top.mode = 0700, folder.mode = 0500, folder.path = "folder";
  file.path = "folder/file", file.size = list.covered(), file.list = list.take(), file.mtime_ns = -5;
  link.type = Entry::Type::kLink, link.path = "folder/link", link.target = "file", link.size = 4;
  large.path = "large", large.size = 300, large.segments = {{100, 50, id_of("d")}, {200, 60, id_of("e")}};
  return {top, folder, file, link, large};
}

/// Calls `parse` with each prefix and with each byte changed; what it accepts is for it to judge.
void damage(const std::string& good, const std::function<void(const std::string&)>& parse) {
  for (size_t size = 0; size < good.size(); ++size) parse(good.substr(0, size));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ mask);
      parse(bad);
    }
  }
  parse(good + '\0');
}

}  // namespace

TEST_CASE("id: SHA-256, and HMAC-SHA-256") {
  CHECK(to_hex(id_of("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // A key of its own is derived for each purpose: HMAC by the HMAC of the purpose.
  const std::string key = "what nobody knows";
  const IdBuilder one(as_bytes(key), "one"), other(as_bytes(key), "other"), none({}, "one");
  CHECK(one.keyed());
  CHECK(!none.keyed());
  CHECK(none.of(as_bytes("abc")) == id_of("abc"));
  CHECK(one.of(as_bytes("abc")) != other.of(as_bytes("abc")));
  // python3: k = hmac.digest(b"what nobody knows", b"one", "sha256"); hmac.new(k, b"abc", "sha256").hexdigest()
  CHECK(to_hex(one.of(as_bytes("abc"))) == "f58a8cf3f9ee44b073b4b0ca598d54d1ee32e3bed60323876a8e3fee7d8dff2b");
}

TEST_CASE("pack: a table comes back as it was, and no damaged one is taken for another") {
  const PackTable table = sample_table();
  const std::string good = encode_table(table);
  auto back = parse_table(as_bytes(good), size_of(good), "p");
  REQUIRE(back);
  CHECK(encode_table(*back) == good);
  for (size_t chunk = 0; chunk < 9; ++chunk) CHECK(&back->group_of(chunk) == &back->groups[chunk / 3]);
  CHECK(back->offset_in_group(back->groups[1], 5) == 200);
  damage(good, [&](const std::string& bad) {
    auto parsed = parse_table(as_bytes(bad), size_of(good), "p");
    if (!parsed)
      CHECK(parsed.error().code == Code::kCorrupt);
    else
      CHECK(encode_table(*parsed) == bad);
  });
  CHECK(!parse_table(as_bytes(good), size_of(good) - 1, "p"));
  CHECK(!parse_table(as_bytes(good), UINT64_MAX, "p"));
  const std::string trailer = pack_trailer(good);
  damage(trailer, [&](const std::string& bad) {
    auto parsed = parse_trailer(as_bytes(bad), size_of(good), "p");
    if (parsed && bad != trailer) CHECK(check_trailer(*parsed, as_bytes(good), "p").error().code == Code::kCorrupt);
  });
}

TEST_CASE("index: each damaged byte is found") {
  const std::string table = encode_table(sample_table());
  IndexWriter writer;
  writer.add(pack_name(std::string(32, 'a'), 7), size_of(table), table);
  writer.add(pack_name(std::string(32, 'b'), 0xffffffff), size_of(table), table);
  const std::string good = writer.finish();
  auto back = parse_index(as_bytes(good), "i");
  REQUIRE((back && back->size() == 2));
  CHECK((*back)[1].name == std::string(32, 'b') + "-ffffffff");
  damage(good, [&](const std::string& bad) { CHECK(!parse_index(as_bytes(bad), "i")); });
}

TEST_CASE("tree: comes back as it was; paths and links that lead elsewhere are refused") {
  const std::string good = encode_tree(sample_tree());
  auto back = parse_tree(as_bytes(good), "t");
  REQUIRE(back);
  CHECK(encode_tree(*back) == good);
  damage(good, [&](const std::string& bad) {
    auto parsed = parse_tree(as_bytes(bad), "t");
    if (!parsed) return;
    CHECK(encode_tree(*parsed) == bad);
    for (const Entry& entry : *parsed) CHECK((entry.path.empty() || is_inner_path(entry.path)));
  });
  for (const char* path :
       {"../x", "/etc/x", "folder/../x", "", ".", "a//b", "a/", "missing/x", "folder/file/x", "folder/link/x"}) {
    std::vector<Entry> entries = sample_tree();
    Entry entry;
    entry.path = path;
    entries.push_back(entry);
    CHECK(!parse_tree(as_bytes(encode_tree(entries)), "t"));
  }
  for (const char* target : {"/etc/passwd", "../../x", "..", "../folder/../../x", "a/../../../x", ""}) {
    std::vector<Entry> entries = sample_tree();
    entries[3].target = target, entries[3].size = entries[3].target.size();
    CHECK((std::string(target) == ".." || !parse_tree(as_bytes(encode_tree(entries)), "t")));
  }
}

TEST_CASE("list: runs and zeros come back; one that covers too much or too little is refused") {
  ListWriter writer;
  for (int i = 0; i < 5; ++i) writer.add(id_of(std::to_string(i)), 4096);
  writer.add_zeros(10), writer.add_zeros(20), writer.add(id_of("x"), 3);
  const uint64_t covered = writer.covered();
  const std::string good = writer.take();
  CHECK(good.size() == 9 + 5 * 32 + 9 + 9 + 32);
  std::vector<Extent> extents;
  auto take = [&](const Extent& extent) -> Result<void> { return extents.push_back(extent), Result<void>(); };
  REQUIRE(read_list(as_bytes(good), covered, "l", take));
  CHECK((extents.size() == 7 && extents[5].length == 30 && extents[5].id.empty() && extents[6].length == 3));
  CHECK(!read_list(as_bytes(good), covered - 1, "l", take));
  CHECK(!read_list(as_bytes(good), covered + 1, "l", take));
  damage(good, [&](const std::string& bad) {
    uint64_t sum = 0;
    const auto done = read_list(as_bytes(bad), covered, "l", [&](const Extent& extent) -> Result<void> {
      sum += extent.length;
      return {};
    });
    CHECK((!done || sum == covered));
  });
}

TEST_CASE("documents: come back as they were, and no damaged one stops anything but itself") {
  Ref ref;
  ref.name = "n", ref.created = ref.pushed = "2026-01-31T12:00:00.123456Z", ref.kind = "model", ref.format = "dcp";
  ref.tree = "list", ref.tree_bytes = 12;
  const std::string good = encode_ref(ref, IdBuilder());
  auto back = parse_ref(good, "n", IdBuilder(), "r");
  REQUIRE(back);
  CHECK(encode_ref(*back, IdBuilder()) == good);
  CHECK(!parse_ref(good, "m", IdBuilder(), "r"));
  damage(good, [&](const std::string& bad) { CHECK(!parse_ref(bad, "n", IdBuilder(), "r")); });
  // Sealed, and wrong all the same.
  for (const auto& change : std::vector<std::function<void(Ref&)>>{
           [](Ref& r) { r.path = "../x"; }, [](Ref& r) { r.kind = "other"; }, [](Ref& r) { r.created = "\x1b[2J"; },
           [](Ref& r) { r.tree.clear(); }, [](Ref& r) { r.tree_bytes = UINT64_MAX; }}) {
    Ref bad = ref;
    change(bad);
    CHECK(!parse_ref(encode_ref(bad, IdBuilder()), "n", IdBuilder(), "r"));
  }
  Marker marker;
  marker.host = "h", marker.boot_id = "b", marker.pid = 1, marker.pid_start = 2, marker.honoured = {"x", "y"};
  marker.since = marker.refreshed = ref.created;
  auto marker_back = parse_marker(to_json(marker), "m");
  REQUIRE(marker_back);
  CHECK(to_json(*marker_back) == to_json(marker));
  damage(to_json(marker), [&](const std::string& bad) { (void)parse_marker(bad, "m").has_value(); });
  Condemned condemned{ref.created, {pack_name(std::string(32, 'c'), 1)}};
  REQUIRE(parse_condemned(to_json(condemned), "c"));
  condemned.packs = {"../../x"};
  CHECK(!parse_condemned(to_json(condemned), "c"));
  CHECK(!parse_condemned("[[[[[[[[[[", "c"));
  CHECK(parse_condemned(R"({"schema": "ckpt.condemned/2"})", "c").error().code == Code::kUnsupported);
}

TEST_CASE("cuts: what moved is found again, fixed pieces stay whole") {
  const std::string body = noise(8 << 20, 1);
  const ContentCuts cuts{IdBuilder()};
  auto pieces = [&](const std::string& text, size_t step) {
    std::vector<std::string> out;
    Cutter cutter(cuts);
    auto each = [&](ByteSpan piece) -> Result<void> { return out.emplace_back(as_text(piece)), Result<void>(); };
    for (size_t at = 0; at < text.size(); at += step)
      REQUIRE(cutter.feed(as_bytes(std::string_view(text).substr(at, step)), each));
    REQUIRE(cutter.finish(each));
    return out;
  };
  const auto plain = pieces(body, 1 << 20), other_steps = pieces(body, 77'777),
             moved = pieces("12345" + body, 512 << 10);
  CHECK(plain == other_steps);
  CHECK(plain.size() >= 3);
  for (size_t i = 1; i < plain.size(); ++i) CHECK(std::count(moved.begin(), moved.end(), plain[i]) == 1);
  for (size_t i = 0; i + 1 < plain.size(); ++i) CHECK((plain[i].size() >= 256 << 10 && plain[i].size() <= 4 << 20));
  const std::vector<Fixed> fixed = {{4096, 100}, {4196, 50}, {10'000, 5000}};
  std::vector<size_t> lengths;
  Cutter cutter(fixed, 0);
  auto each = [&](ByteSpan piece) -> Result<void> { return lengths.push_back(piece.size()), Result<void>(); };
  for (int i = 0; i < 20'000; i += 1000) REQUIRE(cutter.feed(as_bytes(std::string(1000, 'x')), each));
  REQUIRE(cutter.finish(each));
  CHECK(lengths == std::vector<size_t>{4096, 100, 50, 3946, 1808, 5000, 1384, 3616});
}

TEST_CASE("index: ids that a stranger made up to lie in one place take no longer than others") {
  Index index;
  for (uint32_t number = 0; number < 4; ++number) {
    KnownPack pack;
    pack.name = pack_name(std::string(32, 'a'), number);
    for (uint32_t i = 0; i < 50'000; ++i) {
      Id id;
      id.bytes.fill(7);
      if (number % 2 == 0)
        std::memcpy(id.bytes.data() + 28, &i, sizeof i);  // alike in all but the last bytes, or altogether
      pack.table.ids.push_back(id);
      pack.table.lengths.push_back(1);
    }
    index.add(std::move(pack));
  }
  size_t found = 0;
  Id same;
  same.bytes.fill(7);
  index.find_all(same, [&](const ChunkPlace&) { return ++found, true; });
  CHECK((found >= 1 && found <= 64));
  CHECK(index.find(index.packs()[2].table.ids[49'999]));
}
