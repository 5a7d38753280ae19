// Small files that stand for much: each is refused before it costs memory or time.
#include <ctime>
#include <nlohmann/json.hpp>

#include "formats/pickle/emit.h"
#include "formats/torch_dist/metadata.h"
#include "formats/zarr/zarray.h"
#include "tests/unit/formats/helpers.h"

using namespace ckpt;
using namespace ckpt::test;
using namespace ckpt::formats;
using namespace std::string_literals;
namespace fs = std::filesystem;

namespace {

std::string text(const std::string& value) {
  const auto size = static_cast<uint32_t>(value.size());
  return "X"s + std::string(reinterpret_cast<const char*>(&size), 4) + value;
}
std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
std::string record(const std::string& name) { return global("torch.distributed.checkpoint.metadata", name) + ")\x81"; }

/// A .metadata whose state_dict_metadata holds `entries` (keys and values) and whose storage_data holds `places`.
std::string metadata(const std::string& entries, const std::string& places = "") {
  return "\x80\x02" + record("Metadata") + "}(" + text("state_dict_metadata") + "}(" + entries + "u" +
         text("storage_data") + "}(" + places + "uub.";
}
/// A tensor record with `chunks` as its list; memo 1 holds it.
std::string tensor_record(const std::string& chunks) {
  return record("TensorStorageMetadata") + "}(" + text("size") + "(K\x04t" + text("properties") +
         record("TensorProperties") + "(" + global("torch", "float32") + "tb" + text("chunks") + chunks + "ub";
}
const std::string kChunk =
    record("ChunkStorageMetadata") + "}(" + text("offsets") + "(K\0t"s + text("sizes") + "(K\x04tub";

std::string refused(const std::string& pickle) {
  const std::clock_t begin = std::clock();
  auto out = parse_dcp_metadata(as_bytes(pickle), 1 << 30);
  CHECK((std::clock() - begin) / CLOCKS_PER_SEC < 30);  // of a processor; what it must not be is quadratic: hours
  return out ? "taken" : out.error().message;
}

}  // namespace

TEST_CASE("hostile: a list of chunks that many tensors share is refused") {
  std::string chunks = "](", entries;
  for (int i = 0; i < 2000; ++i) chunks += kChunk;
  chunks += "eq\x01";
  for (int i = 0; i < 2000; ++i)
    entries += text("k" + std::to_string(i)) + (i == 0 ? tensor_record(chunks) + "q\x02" : "h\x02");
  CHECK(refused(metadata(entries)).find("more chunks than records") != std::string::npos);
}

TEST_CASE("hostile: a wide record that many entries share is refused") {
  std::string wide = record("MetadataIndex") + "}(" + text("fqn") + text("k");
  for (int i = 0; i < 40'000; ++i) wide += "J" + std::string(reinterpret_cast<const char*>(&i), 4) + "N";
  std::string places = wide + "ubq\x01Nq\x02";
  for (int i = 0; i < 50'000; ++i) places += "h\x01h\x02";
  CHECK(refused(metadata("", places)).find("no fqn") != std::string::npos);
  std::string axes = record("MetadataIndex") + "}(" + text("fqn") + text("k") + text("offset") + "(";
  for (int i = 0; i < 100; ++i) axes += "K\x01";
  CHECK(refused(metadata("", axes + "tubN")).find("64 axes") != std::string::npos);
}

TEST_CASE("hostile: keys that are overlong or that a memo repeats are refused") {
  CHECK(refused(metadata(text(std::string(5000, 'k')) + "N")).find("longer than 4096") != std::string::npos);
  std::string twice;
  for (int i = 0; i < 2; ++i) twice += text("same") + record("BytesStorageMetadata");
  CHECK(refused(metadata(twice)) == "malformed .metadata: two entries are called same");
}

TEST_CASE("hostile: a long name that is used again and again costs its length once") {
  std::string pickle = "\x80\x02" + text(std::string(8 << 20, 'm')) + "q\x01" "0";
  for (int i = 0; i < 100'000; ++i) pickle += "h\x01h\x01\x93" "0";
  CHECK(refused(pickle + "N.").find("overlong name") != std::string::npos);
}

TEST_CASE("hostile: a line feed in a name does not become opcodes of what is written") {
  // A global called `x\ncos\nsystem\n`: written as GLOBAL the rest of it would be another one.
  const std::string pickle = "\x80\x04" + text("foo") + text("x\ncos\nsystem\n.") + "\x93.";
  auto graph = pickle::parse(as_bytes(pickle));
  REQUIRE(graph);
  pickle::Writer out;
  pickle::Emitter emitter(out, *graph, [](pickle::NodeId) { return Result<void>(); });
  auto written = emitter.emit(graph->root());
  REQUIRE_FALSE(written);
  CHECK(written.error().code == Code::kUnsupported);
}

TEST_CASE("hostile: documents that nest deeply are refused, not followed") {
  const std::string deep(500'000, '['), closed = deep + std::string(500'000, ']');
  CHECK_FALSE(parse_zarray(R"({"zarr_format": 2, "shape": )" + closed + "}", false));
  TempDir dir;
  REQUIRE(io::write_file(dir.path / "metadata.json", R"({"sharded_backend": "zarr", "x": )" + closed + "}"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("nests too deep") != std::string::npos);
  REQUIRE(io::write_file(dir.path / "metadata.json", "{}"));
  REQUIRE(io::write_file(dir.path / "model.safetensors.index.json", R"({"weight_map": )" + closed + "}"));
  CHECK(open_error(dir.path, Code::kCorrupt).find("weight_map") != std::string::npos);
}
