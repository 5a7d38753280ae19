#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "formats/pickle/pickle.h"
#include "formats/torch_dist/object_record.h"
#include "formats/torch_dist/record.h"
#include "formats/torch_dist/writer.h"
#include "formats/torch_save/tensor_pickle.h"
#include "formats/zip/writer.h"
#include "formats/zip/zip.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/tensor/write_files.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using namespace ckpt::tensor;
using ckpt::test::TempDir;

namespace fs = std::filesystem;

namespace {

/// A source folder and its catalog, built chunk by chunk.
class Source {
 public:
  explicit Source(const fs::path& root) {
    fs::create_directories(root);
    catalog.format = "zarr";
    catalog.root = root;
  }
  /// A row-major tensor of random bytes, cut into chunks of `chunk`; edge chunks are stored whole, as zarr does.
  std::string add(const std::string& key, DType dtype, const Shape& shape, const Shape& chunk) {
    const uint32_t item = item_size(dtype);
    std::string whole(element_count(shape).value() * item, 0);
    for (char& c : whole) c = static_cast<char>(random_());
    Tensor t;
    t.key = key;
    t.dtype = dtype;
    t.shape = shape;
    Tensor grid = t;
    Shape counts;
    for (size_t a = 0; a < shape.size(); ++a) counts.push_back((shape[a] + chunk[a] - 1) / chunk[a]);
    const uint64_t chunks = element_count(counts).value();
    for (uint64_t i = 0; i < chunks; ++i) {
      Shard shard;
      shard.stored_shape = chunk;
      uint64_t rest = i;
      shard.offset.resize(shape.size());
      shard.shape.resize(shape.size());
      for (size_t a = shape.size(); a-- > 0;) {
        shard.offset[a] = rest % counts[a] * chunk[a];
        shard.shape[a] = std::min(chunk[a], shape[a] - shard.offset[a]);
        rest /= counts[a];
      }
      std::string stored(element_count(chunk).value() * item, '\x55');
      for (uint64_t e = 0; e < element_count(chunk).value(); ++e) {
        uint64_t left = e, from = 0, stride = 1;
        bool inside = true;
        for (size_t a = shape.size(); a-- > 0;) {
          const uint64_t at = shard.offset[a] + left % chunk[a];
          inside = inside && at < shape[a];
          from += at * stride;
          stride *= shape[a];
          left /= chunk[a];
        }
        if (inside) std::memcpy(stored.data() + e * item, whole.data() + from * item, item);
      }
      shard.where = add_file(std::to_string(catalog.tensors.size()) + "." + std::to_string(i), stored);
      t.shards.push_back(shard);
    }
    catalog.tensors.push_back(t);
    return whole;
  }
  FileRange add_file(const std::string& name, const std::string& content) {
    REQUIRE(io::write_file(catalog.root / name, content));
    catalog.files.push_back({name, content.size()});
    return {static_cast<uint32_t>(catalog.files.size() - 1), 0, content.size()};
  }
  Catalog catalog;

 private:
  std::mt19937 random_{7};
};

using Wanted = std::function<bool(const std::string&)>;

/// A plan with what it refers to.
struct Planned {
  Selection selection;
  std::unique_ptr<Layout> layout;
  const Layout* operator->() const { return layout.get(); }
};

Result<Planned> plan(const Catalog& catalog, const formats::WriteOptions& options = {}, const Wanted& wanted = {}) {
  auto selection = std::make_unique<Selection>(Selection::all(catalog));
  if (wanted) {
    std::erase_if(selection->tensors, [&](const Target& target) { return !wanted(target.key); });
    std::erase_if(selection->objects, [&](const ObjectTarget& object) { return !wanted(object.key); });
  }
  static std::vector<std::unique_ptr<Selection>> kept;  // layouts refer to them
  kept.push_back(std::move(selection));
  CKPT_TRY_ASSIGN(auto layout, torch_dist::plan_torch_dist(*kept.back(), options));
  return Planned{*kept.back(), std::move(layout)};
}

Result<void> write_to(const fs::path& folder, const Catalog& catalog, const formats::WriteOptions& options,
                      unsigned workers, const Cancel& cancel = {}, const Wanted& wanted = {}) {
  fs::create_directories(folder);
  CKPT_TRY_ASSIGN(Planned planned, plan(catalog, options, wanted));
  const WriteControl control{workers, false, options.max_memory, null_progress(), cancel};
  io::LocalOutput out(folder, control.durable);
  std::vector<size_t> data_files;
  for (size_t i = 0; i < planned->files.size(); ++i) {
    if (!planned->files[i].generate) data_files.push_back(i);
  }
  CKPT_TRY(write_data_files(*planned.layout, planned.selection, out, data_files, control));
  for (const OutputFile& file : planned->files) {
    if (file.generate) CKPT_TRY(write_generated_file(file, out, control));
  }
  return {};
}

size_t data_files_of(const Planned& planned) {
  return static_cast<size_t>(std::count_if(planned->files.begin(), planned->files.end(),
                                           [](const OutputFile& file) { return !file.generate; }));
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    out[entry.path().filename()] = io::read_file(entry.path(), uint64_t{1} << 30).value();
  }
  return out;
}

/// The tensor's bytes out of the written items, element by element, with every CRC and record size checked.
std::string read_back(const Planned& planned, const std::map<std::string, std::string>& files, const std::string& key) {
  std::string out;
  for (const OutputFile& file : planned->files) {
    for (size_t i = file.first; i < file.last; ++i) {
      const Piece item = planned->piece(i).value();
      const auto part = std::find_if(item.parts.begin(), item.parts.end(),
                                     [&](const Part& p) { return p.target != nullptr && p.target->key == key; });
      if (part == item.parts.end()) continue;
      const Target& t = *part->target;
      const uint32_t size = item_size(t.dtype);
      out.resize(t.bytes());
      const Region& region = part->region;
      const auto record = torch_dist::tensor_record(t.dtype, region.shape);
      const std::string& bytes = files.at(file.name);
      const std::string data = bytes.substr(item.offset + record.data_offset(), record.data_size());
      REQUIRE(data.size() == record.data_size());
      const uint32_t crc = crc32(0, as_bytes(data));
      CHECK(bytes.substr(item.offset, record.data_offset()) == record.head(crc));
      CHECK(bytes.substr(item.offset + record.data_offset() + data.size(),
                         record.size() - record.data_offset() - data.size()) == record.tail(crc));
      for (uint64_t e = 0; e * size < data.size(); ++e) {
        uint64_t left = e, to = 0, stride = 1;
        for (size_t a = t.shape.size(); a-- > 0;) {
          to += (region.offset[a] + left % region.shape[a]) * stride;
          stride *= t.shape[a];
          left /= region.shape[a];
        }
        std::memcpy(out.data() + to * size, data.data() + e * size, size);
      }
    }
  }
  return out;
}

void fill(Source& source, std::map<std::string, std::string>& expected) {
  auto add = [&](const std::string& key, DType dtype, const Shape& shape, const Shape& chunk) {
    expected[key] = source.add(key, dtype, shape, chunk);
  };
  add("a.weight", DType::kBfloat16, {6, 8}, {3, 4});
  add("b.edges", DType::kFloat32, {7, 5, 3}, {3, 2, 2});
  add("c.vector", DType::kInt64, {1000}, {300});
  add("d.scalar", DType::kFloat64, {}, {});
  add("e.empty", DType::kFloat32, {0, 4}, {1, 4});
  add("f.float8", DType::kFloat8E4m3fn, {16, 16}, {16, 8});
  add("g.large", DType::kFloat32, {600, 1024}, {600, 1024});
}

}  // namespace

TEST_CASE("torch_dist writer: every tensor comes back from its items, whatever the grid, the files and the workers") {
  TempDir dir;
  Source source(dir.path / "src");
  std::map<std::string, std::string> expected;
  fill(source, expected);
  int round = 0;
  for (uint64_t shard_size : {uint64_t{0}, uint64_t{16}, uint64_t{100}, uint64_t{4096}, uint64_t{1} << 30}) {
    for (unsigned files : {0u, 1u, 3u, 50u}) {
      if ((shard_size == 16 || (ckpt::test::kSanitized && shard_size == 100)) && files != 3)
        continue;  // many pieces: once is enough
      formats::WriteOptions options;
      options.grid.shard_size = shard_size;
      options.files = files;
      const Wanted wanted = [&](const std::string& key) { return shard_size != 16 || key != "g.large"; };
      auto planned = plan(source.catalog, options, wanted);
      REQUIRE(planned);
      const fs::path one = dir.path / std::to_string(round++), four = dir.path / std::to_string(round++);
      REQUIRE(write_to(one, source.catalog, options, 1, {}, wanted));
      REQUIRE(write_to(four, source.catalog, options, 4, {}, wanted));
      const auto written = files_of(one);
      CHECK(written == files_of(four));
      CHECK(written.count("metadata.json") == 1);
      CHECK(written.count("common.pt") == 1);
      CHECK(written.size() == planned->layout->files.size());
      CHECK(written.size() == data_files_of(*planned) + 3);
      if (files > 0) CHECK(data_files_of(*planned) == std::min<size_t>(files, planned->layout->shards));
      for (const auto& tensor : expected) {
        const std::string& key = tensor.first;
        if (wanted(key)) CHECK_MESSAGE(read_back(*planned, written, key) == tensor.second, key);
      }
    }
  }
}

TEST_CASE("torch_dist plan: items lie in their files in order, without overlap, aligned, within the shard size") {
  TempDir dir;
  Source source(dir.path / "src");
  std::map<std::string, std::string> expected;
  fill(source, expected);
  formats::WriteOptions options;
  options.files = 4;
  options.grid.shard_size = 2 << 20;
  auto planned = plan(source.catalog, options);
  REQUIRE(planned);
  size_t next = 0;
  for (const OutputFile& file : planned->layout->files) {
    if (file.generate) continue;
    CHECK(file.first == next);
    CHECK(file.last > file.first);
    uint64_t end = 0;
    for (size_t i = file.first; i < file.last; ++i) {
      const Piece item = planned->layout->piece(i).value();
      CHECK(item.offset >= end);
      CHECK(item.offset % 64 == 0);
      CHECK(item.size() == planned->layout->piece_size(i));
      REQUIRE(item.parts.size() == 3);
      const uint64_t data = item.parts[1].size();
      CHECK(data <= options.grid.shard_size);
      CHECK((item.offset + item.parts[0].size()) % formats::storage_alignment(data) == 0);
      end = item.offset + item.size();
    }
    CHECK(file.size == end);
    next = file.last;
  }
  CHECK(next == planned->layout->shards);
}

TEST_CASE("torch_dist plan: keys that the target cannot name are refused, each by its name") {
  TempDir dir;
  Source source(dir.path / "src");
  source.add("same/shard_0_1", DType::kUint8, {4}, {4});
  source.add("bad\xffkey", DType::kUint8, {4}, {4});
  for (const char* key : {"same/shard_0_1", "plain_object", "a/b/shard_0_1", "x/shard_0", "/shard_0_1"}) {
    Object object;
    object.key = key;
    object.wrapped_in_list = true;
    object.where = source.add_file("o" + std::to_string(source.catalog.files.size()), "object");
    source.catalog.objects.push_back(object);
  }
  auto planned = plan(source.catalog);
  REQUIRE_FALSE(planned);
  CHECK(planned.error().code == Code::kUsage);
  std::string all;
  for (const std::string& cause : planned.error().causes) all += cause + "\n";
  CHECK(planned.error().causes.size() == 6);
  for (const char* part : {"same/shard_0_1: occurs twice", "bad\xffkey: is not UTF-8",
                           "plain_object:", "a/b/shard_0_1:", "x/shard_0:", "/shard_0_1:"}) {
    CHECK_MESSAGE(all.find(part) != std::string::npos, part);
  }
  source.catalog.tensors.erase(source.catalog.tensors.begin());
  CHECK(plan(source.catalog, {}, [](const std::string& key) { return key == "same/shard_0_1"; }));
}

TEST_CASE("torch_dist plan: a plain torch checkpoint keeps its objects' names and gets no metadata.json") {
  TempDir dir;
  Source source(dir.path / "src");
  source.catalog.format = "dcp";
  const std::string bytes = source.add("w", DType::kFloat32, {4}, {2});
  Object object;
  object.key = "optim.param_groups.0.lr";
  object.where = source.add_file("object", "any bytes");
  source.catalog.objects.push_back(object);
  auto planned = plan(source.catalog);
  REQUIRE(planned);
  CHECK(planned->layout->last_file == ".metadata");
  REQUIRE(write_to(dir.path / "out", source.catalog, {}, 2));
  const auto files = files_of(dir.path / "out");
  CHECK(files.size() == 2);
  CHECK(files.at("__0_0.distcp").find("any bytes") != std::string::npos);
  CHECK(read_back(*planned, files, "w") == bytes);
}

TEST_CASE(
    "torch_dist plan: shards that overlap, leave a gap or lie outside their file are refused before anything is "
    "written") {
  TempDir dir;
  Source good(dir.path / "src");
  good.add("w", DType::kFloat32, {8, 4}, {4, 4});
  auto refused = [](const Catalog& catalog) {
    auto planned = plan(catalog);
    return !planned && planned.error().code == Code::kCorrupt;
  };
  REQUIRE_FALSE(refused(good.catalog));
  Catalog gap = good.catalog;
  gap.tensors[0].shards.pop_back();
  CHECK(refused(gap));
  Catalog overlap = good.catalog;
  overlap.tensors[0].shards[1].offset[0] = 3;
  CHECK(refused(overlap));
  Catalog outside = good.catalog;
  outside.tensors[0].shards[1].where.offset = 1;
  CHECK(refused(outside));
  Catalog truncated = good.catalog;
  truncated.tensors[0].shards[1].where.length -= 4;
  CHECK(refused(truncated));
  Catalog nowhere = good.catalog;
  nowhere.tensors[0].shards[1].where.file = 99;
  CHECK(refused(nowhere));
}

TEST_CASE("torch_dist plan: an encoded shard that does not fit into the memory is refused with what it takes") {
  TempDir dir;
  Source source(dir.path / "src");
  source.add("w", DType::kFloat32, {8, 4}, {8, 4});
  Shard& shard = source.catalog.tensors[0].shards[0];
  shard.encoding = Encoding::kEncoded;
  source.catalog.tensors[0].shape = shard.shape = shard.stored_shape = {1 << 20, 32};
  formats::WriteOptions options;
  auto planned = plan(source.catalog, options);
  REQUIRE_FALSE(planned);
  CHECK(planned.error().code == Code::kNoRoom);
  CHECK(planned.error().hint.find("--max-memory") != std::string::npos);
  options.max_memory = uint64_t{1} << 30;
  CHECK(plan(source.catalog, options));
}

TEST_CASE("torch_dist writer: encoded shards are decoded once per piece, under any memory limit that holds one") {
  struct Flip : Decoder {
    Result<void> decode(const Tensor&, const Shard&, ByteSpan in, MutableByteSpan out) const override {
      for (size_t i = 0; i < out.size(); ++i) out[i] = ~in[i];
      return {};
    }
  };
  TempDir dir;
  Source source(dir.path / "src");
  std::string expected = source.add("w", DType::kInt32, {40, 60}, {16, 25});
  for (Shard& shard : source.catalog.tensors[0].shards) shard.encoding = Encoding::kEncoded;
  for (char& c : expected) c = static_cast<char>(~c);
  source.catalog.decoder = std::make_shared<Flip>();
  int round = 0;
  for (uint64_t shard_size : {uint64_t{0}, uint64_t{1000}, uint64_t{1} << 20}) {
    formats::WriteOptions options;
    options.grid.shard_size = shard_size;
    options.files = 8;
    options.max_memory = 3 * 2 * 16 * 25 * 4;
    const fs::path out = dir.path / std::to_string(round++);
    REQUIRE(write_to(out, source.catalog, options, 8));
    CHECK(read_back(plan(source.catalog, options).value(), files_of(out), "w") == expected);
  }
}

TEST_CASE("torch_dist writer: a source cut after its metadata was read is an error that names the file") {
  TempDir dir;
  Source source(dir.path / "src");
  source.add("w", DType::kFloat32, {1 << 18}, {1 << 18});
  fs::resize_file(dir.path / "src" / "0.0", 100'000);
  auto result = write_to(dir.path / "out", source.catalog, {}, 2);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::kCorrupt);
  CHECK(result.error().text().find("0.0") != std::string::npos);
}

TEST_CASE("torch_dist writer: a stop request ends it") {
  TempDir dir;
  Source source(dir.path / "src");
  source.add("w", DType::kFloat32, {1 << 18}, {1 << 16});
  Cancel cancel;
  cancel.request();
  auto result = write_to(dir.path / "out", source.catalog, {}, 2, cancel);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::kInterrupted);
  CHECK_FALSE(fs::exists(dir.path / "out" / "metadata.json"));
}

TEST_CASE("torch_dist writer: a checkpoint without tensors is whole, too") {
  TempDir dir;
  Source source(dir.path / "src");
  source.catalog.common = source.add_file("common.pt", "common state, byte for byte");
  REQUIRE(write_to(dir.path / "out", source.catalog, {}, 2));
  auto files = files_of(dir.path / "out");
  CHECK(files.size() == 3);
  CHECK(files.at("common.pt") == "common state, byte for byte");
  CHECK(files.at("metadata.json").find("\"torch_dist\"") != std::string::npos);
}

namespace {

/// A torch.save file as torch writes it, with records that it may or may not need.
std::string saved(const std::string& pickle, const std::string& storage) {
  const std::vector<std::pair<std::string, std::string>> records = {{"data.pkl", pickle},
                                                                    {"byteorder", "little"},
                                                                    {"data/0", storage},
                                                                    {"version", "3\n"},
                                                                    {".data/serialization_id", "0123456789"}};
  zip::Layout layout;
  std::vector<uint32_t> crcs;
  for (const auto& [name, data] : records) {
    layout.add("shard_0_1/" + name, data.size());
    crcs.push_back(crc32(0, as_bytes(data)));
  }
  std::string out;
  for (size_t i = 0; i < records.size(); ++i) out += layout.header(i, crcs[i]) + records[i].second;
  return out + layout.directory(crcs);
}

std::map<std::string, std::string> records_of(const std::string& archive) {
  zip::ByteSource source(as_bytes(archive), "archive");
  auto read = zip::read_archive(source);
  REQUIRE(read);
  std::map<std::string, std::string> out;
  for (const zip::Record& record : read->records) {
    out[record.name] = std::string(as_text(zip::read_record(source, record, 1 << 20).value()));
    CHECK(zip::record_crc(source, record).value() == record.crc);
  }
  return out;
}

const std::string kPickle = std::string("\x80\x02}q\0X\x01\0\0\0kq\x01K\x07s.", 17);

}  // namespace

TEST_CASE("torch_dist writer: zarr's object becomes a list of one element, its storages stay as they are") {
  TempDir dir;
  Source source(dir.path / "src");
  Object object;
  object.key = "rng/shard_0_1";
  const std::string storage(70'000, 's');
  object.where = source.add_file("object.pt", saved(kPickle, storage));
  source.catalog.objects.push_back(object);
  auto planned = plan(source.catalog);
  REQUIRE(planned);
  REQUIRE(write_to(dir.path / "out", source.catalog, {}, 1));
  const std::string file = files_of(dir.path / "out").at("__0_0.distcp");
  auto records = records_of(file.substr(planned->layout->piece(0)->offset, planned->layout->piece_size(0)));
  CHECK(records.size() == 4);
  CHECK(records.at("archive/data/0") == storage);
  CHECK(records.at("archive/byteorder") == "little");
  auto graph = pickle::parse(as_bytes(records.at("archive/data.pkl")));
  REQUIRE(graph);
  REQUIRE(graph->kind(graph->root()) == pickle::Kind::kList);
  REQUIRE(graph->items(graph->root()).size() == 1);
  CHECK(graph->as_int(graph->get(graph->items(graph->root())[0], "k")) == 7);
}

TEST_CASE("torch_dist writer: an object that no loader could open in a list is refused by name") {
  TempDir dir;
  Source source(dir.path / "src");
  Object object;
  object.key = "rng/shard_0_1";
  source.catalog.objects.push_back(object);
  auto code_of = [&](const std::string& content) {
    source.catalog.objects[0].where = source.add_file("o" + std::to_string(source.catalog.files.size()), content);
    auto planned = plan(source.catalog);
    REQUIRE_FALSE(planned);
    CHECK(planned.error().causes.back().find("rng/shard_0_1") != std::string::npos);
    return planned.error().code;
  };
  const std::string whole = saved(kPickle, "data");
  CHECK(code_of("\x80\x02K\x01.") == Code::kUnsupported);  // legacy: a bare pickle
  CHECK(code_of(whole.substr(0, whole.size() - 40)) == Code::kCorrupt);
  CHECK(code_of(saved("\x80\x02K", "data")) == Code::kCorrupt);
  CHECK(code_of("P") == Code::kCorrupt);
}

TEST_CASE("torch_dist writer: Megatron 0.19's common_state object becomes a common.pt again") {
  TempDir dir;
  Source source(dir.path / "src");
  source.catalog.format = "torch_dist";
  const std::string listed = "\x80\x02]q\x02" + kPickle.substr(2, kPickle.size() - 3) + "a.";
  source.catalog.common = source.add_file("__0_0.distcp", saved(listed, "storage"));
  source.catalog.common_wrapped_in_list = true;
  auto written = write_to(dir.path / "out", source.catalog, {}, 1);
  REQUIRE_MESSAGE(written, (written ? "" : written.error().text()));
  auto records = records_of(files_of(dir.path / "out").at("common.pt"));
  CHECK(records.at("common/data.pkl") == kPickle);
  CHECK(records.at("common/data/0") == "storage");
}
