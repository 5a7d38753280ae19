// torch.save files of either kind. Before 1.6: five pickles in a row, then the storages one after another
// (formats.md 3.5).
#include <algorithm>

#include "formats/torch_save/archive.h"

namespace ckpt::formats {

namespace {

constexpr unsigned char kMagicNumber[10] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr int64_t kProtocol = 1001;

Unexpected damaged(const zip::ByteSource& source, std::string why) {
  return fail(Code::kCorrupt, source.subject(), std::move(why));
}

/// The five pickles in `prefix`. The graphs of the fourth and fifth point into it.
struct LegacyPickles {
  pickle::Graph object, keys;
  uint64_t end = 0;
  bool big_endian = false;
};

Result<LegacyPickles> parse_pickles(const zip::ByteSource& source, ByteSpan prefix) {
  LegacyPickles out;
  for (int i = 0; i < 5; ++i) {
    auto graph = pickle::parse(prefix.subspan(out.end));
    if (!graph) {
      graph.error().subject = source.subject();
      return std::move(graph).error();
    }
    out.end += graph->consumed();
    if (i == 0) {
      auto number = graph->as_big_int(graph->root());
      if (!number || as_text(*number) != as_text(std::as_bytes(std::span(kMagicNumber))))
        return damaged(source, "no torch.save file");
    } else if (i == 1 && graph->as_int(graph->root()) != kProtocol) {
      return fail(Code::kUnsupported, source.subject(), "is a torch.save file of an unknown protocol");
    } else if (i == 2) {
      pickle::NodeId little = graph->get(graph->root(), "little_endian");
      out.big_endian = little != pickle::kNoNode && graph->as_bool(little) == false;
    } else if (i == 3) {
      out.object = std::move(*graph);
    } else if (i == 4) {
      out.keys = std::move(*graph);
    }
  }
  return out;
}

Result<void> place_storages(const zip::ByteSource& source, const LegacyPickles& pickles, TorchFile& out) {
  std::unordered_map<std::string_view, pickle::TorchStorage> sizes;
  for (pickle::NodeId id = 0; id < pickles.object.node_count(); ++id) {
    if (pickles.object.kind(id) != pickle::Kind::kPersistent) continue;
    auto storage = pickle::read_torch_storage(pickles.object, id);
    if (storage) sizes[storage->key] = *storage;
  }
  uint64_t at = pickles.end;
  for (pickle::NodeId id : pickles.keys.items(pickles.keys.root())) {
    auto key = pickles.keys.as_str(id);
    auto size = key ? sizes.find(*key) : sizes.end();
    if (size == sizes.end())
      return damaged(source,
                     "its list of storages names one that its object does not have, or of a kind that is not read");
    if (at > source.size() || source.size() - at < 8 || source.size() - at - 8 < size->second.bytes) {
      return damaged(source, "truncated: storage " + std::string(*key) + " ends past the end");
    }
    uint64_t count = 0;
    CKPT_TRY(source.read(at, {reinterpret_cast<std::byte*>(&count), sizeof count}));
    if (pickles.big_endian) count = __builtin_bswap64(count);
    if (count != size->second.bytes / size->second.item) {
      return damaged(source, "storage " + std::string(*key) + " has " + std::to_string(count) +
                                 " elements, its object says " +
                                 std::to_string(size->second.bytes / size->second.item));
    }
    at += sizeof count;
    out.storages[std::string(*key)] = {at, size->second.bytes};
    at += size->second.bytes;
  }
  return {};
}

Result<TorchFile> read_legacy(const zip::ByteSource& source) {
  // How long the pickles are is known after they were parsed: more is read until they fit.
  for (uint64_t limit : {uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{256} << 20}) {
    TorchFile out;
    out.legacy = true;
    out.pickle.resize(std::min(limit, source.size()));
    CKPT_TRY(source.read(0, out.pickle));
    auto pickles = parse_pickles(source, out.pickle);
    if (!pickles && limit < source.size() && limit < (uint64_t{256} << 20)) continue;
    if (!pickles) return std::move(pickles).error();
    CKPT_TRY(place_storages(source, *pickles, out));
    out.big_endian = pickles->big_endian;
    out.graph = std::move(pickles->object);
    return out;
  }
  return damaged(source, "its pickles are larger than the limit");
}

Result<TorchFile> read_zip(const zip::ByteSource& source) {
  CKPT_TRY_ASSIGN(TorchArchive archive, read_torch_archive(source));
  TorchFile out;
  const std::string data = archive.archive.top + "/data/";
  for (const zip::Record& record : archive.archive.records) {
    if (record.name.rfind(data, 0) != 0) continue;
    out.storages[record.name.substr(data.size())] = {record.offset, record.size};
    if (record.size > 0) out.checksums.push_back({{0, record.offset, record.size}, record.crc, record.name});
  }
  out.wrong = std::move(archive.wrong);
  out.big_endian = archive.big_endian;
  out.pickle = std::move(archive.pickle);
  out.graph = std::move(archive.graph);
  return out;
}

}  // namespace

bool begins_legacy_file(ByteSpan first) {
  std::string_view text = as_text(first);
  if (text.size() < kLegacyHead || text[0] != '\x80' || text[1] < 2 || text[1] > 5) return false;
  text.remove_prefix(2);
  if (text[0] == '\x95') text.remove_prefix(9);  // protocols 4 and 5: a frame, and its length
  return text[0] == '\x8a' && text[1] == '\x0a' &&
         text.substr(2, sizeof kMagicNumber) == as_text(std::as_bytes(std::span(kMagicNumber)));
}

Result<TorchFile> read_torch_file(const zip::ByteSource& source) {
  std::vector<std::byte> first(std::min<uint64_t>(source.size(), 512));
  CKPT_TRY(source.read(0, first));
  std::string_view text = as_text(first);
  if (text.substr(0, 4) == "PK\x03\x04") return read_zip(source);
  if (begins_legacy_file(first)) return read_legacy(source);
  if (text.substr(0, 8) == "PYTORCH1")
    return fail(Code::kUnsupported, source.subject(), "is a file of torch 1.0's preview");
  if (text.size() >= 262 && text.substr(257, 5) == "ustar")
    return fail(Code::kUnsupported, source.subject(), "is a tar file");
  return damaged(source, "no torch.save file");
}

}  // namespace ckpt::formats
